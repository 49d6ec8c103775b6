package runner

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the counters of one runner.
type Metrics struct {
	creates  *prometheus.HistogramVec // by "pool": yes, no
	failures prometheus.Counter
	machines prometheus.Gauge
	ready    prometheus.Gauge
	full     prometheus.Counter
}

// NewMetrics registers the runner's metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		creates: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "skerry_create_seconds", Help: "Time from a job's arrival to a running sandbox, by whether the ready pool served it.",
			Buckets: []float64{.01, .02, .04, .06, .08, .1, .15, .2, .3, .5, 1, 2, 5, 10, 30},
		}, []string{"pool"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "skerry_create_failures_total", Help: "Creates that failed."}),
		machines: prometheus.NewGauge(prometheus.GaugeOpts{Name: "skerry_machines", Help: "Sandboxes on this host, failed ones included."}),
		ready:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "skerry_ready_pool_machines", Help: "Started machines that wait for a create."}),
		full:     prometheus.NewCounter(prometheus.CounterOpts{Name: "skerry_disk_full_total", Help: "Times that a sandbox stood still because the host's disk was full."}),
	}
	reg.MustRegister(m.creates, m.failures, m.machines, m.ready, m.full)
	return m
}

func (m *Metrics) created(d time.Duration, fromPool bool) {
	label := "no"
	if fromPool {
		label = "yes"
	}
	m.creates.WithLabelValues(label).Observe(d.Seconds())
}

func (m *Metrics) createFailed() { m.failures.Inc() }

func (m *Metrics) stoodStill() { m.full.Inc() }
