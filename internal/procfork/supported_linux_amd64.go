package procfork

// Supported reports whether this package works on this system.
const Supported = true
