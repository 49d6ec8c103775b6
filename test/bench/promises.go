package main

import "fmt"

// promises are those of the table in docs/SPECIFICATION.md, for the accelerator
// in use; nil where the figure is only reported.
type promises struct {
	create, pool, ratio, exec, memory, burst, loop, still *Promise
}

func promisesFor(accel string) promises {
	p := promises{
		create: atMost("p50", 180, "ms"), pool: atMost("p50", 100, "ms"), ratio: atLeast(15),
		exec: atMost("p50", 5, "ms"), burst: atMost("max", 4000, "ms"),
		memory: atMost("max", 45, "MiB"), still: atMost("p50", 40, "ms"),
	}
	if accel == "kvm" {
		p.create, p.pool, p.ratio = atMost("p50", 60, "ms"), atMost("p50", 15, "ms"), atLeast(5)
		p.still = atMost("p50", 20, "ms")
		p.exec, p.burst, p.loop = atMost("p50", 2, "ms"), atMost("max", 1000, "ms"), atLeast(.95)
	}
	return p
}

func atMost(of string, limit float64, unit string) *Promise {
	name := map[string]string{"p50": "P50", "max": "max"}[of]
	return &Promise{Text: fmt.Sprintf("%s <= %v %s", name, limit, unit), Of: of, Limit: limit}
}

func atLeast(limit float64) *Promise {
	return &Promise{Text: fmt.Sprintf(">= %v x", limit), Of: "p50", Limit: limit, AtLeast: true}
}
