package control

import (
	"math/rand/v2"

	"skerry.dev/skerry"
)

var (
	nameAdjectives = []string{"amber", "brave", "brisk", "calm", "clear", "coral", "eager", "early", "fair", "gentle", "golden", "green",
		"happy", "hardy", "keen", "kind", "light", "lively", "lucky", "mellow", "misty", "noble", "open", "proud", "quick", "quiet", "rapid",
		"silver", "steady", "sunny", "swift", "warm"}
	nameNouns = []string{"anchor", "bay", "beach", "cape", "cliff", "cove", "current", "delta", "dune", "fjord", "gull", "harbor", "heron",
		"inlet", "island", "kelp", "lagoon", "otter", "pebble", "plover", "puffin", "reef", "sail", "seal", "shell", "shoal", "shore",
		"sound", "strand", "tern", "tide", "wave"}
)

// generateName returns a readable name; its random end has 30 bits, and a clash
// is found by the store.
func generateName() string {
	return nameAdjectives[rand.IntN(len(nameAdjectives))] + "-" + nameNouns[rand.IntN(len(nameNouns))] + "-" + skerry.RandomToken(6)
}
