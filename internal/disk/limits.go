package disk

import (
	"skerry.dev/skerry"
)

// Limits bounds what a layer may hold, and so the memory and the time that a
// hostile one can cost. A zero field takes its default.
type Limits struct {
	TarBytes   int64 // length of the tar; default 64 GiB
	Entries    int   // files and directories, implied parents included; default 1,000,000
	DataBytes  int64 // sum of file sizes, holes included; default 256 GiB
	MetaBytes  int64 // sum of names, link targets and extended attributes; default 256 MiB
	NameBytes  int   // one component of a name; default and at most 255
	PathBytes  int   // a whole name; default 4,096
	XattrBytes int   // the extended attributes of one entry; default 128 KiB
	Depth      int   // directories inside one another; default 512
}

// withDefaults fills in the zero fields.
func (l Limits) withDefaults() Limits {
	setDefault(&l.TarBytes, 64<<30)
	setDefault(&l.Entries, 1_000_000)
	setDefault(&l.DataBytes, 256<<30)
	setDefault(&l.MetaBytes, 256<<20)
	setDefault(&l.NameBytes, 255)
	setDefault(&l.PathBytes, 4096)
	setDefault(&l.XattrBytes, 128<<10)
	setDefault(&l.Depth, 512)
	return l
}

func setDefault[T int | int64](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

func tooLarge(what string, bound any) error {
	return skerry.Errorf(skerry.CodeTooLarge, "%s over the limit of %v", what, bound)
}

func invalid(format string, args ...any) error {
	return skerry.Errorf(skerry.CodeInvalid, format, args...)
}
