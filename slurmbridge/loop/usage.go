package loop

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// mostAccounts is how many accounts have series of their own, the largest ones; the rest share one.
const mostAccounts = 30

// otherAccounts is the label of the rest. No account is called so: a blank is in it.
const otherAccounts = "(all others)"

// usageMetrics are what GPUs were used for in the last day.
type usageMetrics struct {
	hours       *prometheus.GaugeVec
	saved, lost *prometheus.GaugeVec
}

func newUsageMetrics() usageMetrics {
	return usageMetrics{
		hours: gauges("usage_gpu_hours", "GPU-hours of the last 24 hours by account, shares as parts of a GPU: held, computed (the part of that time in which kernels ran), idle (held, and nothing done for ten minutes or more), shared (with another job on the GPU). The thirty accounts that held most; the others are one, and all are one where Slurm hides others' usage. What isn't known has no series.", "account", "what"),
		saved: gauges("usage_wait_saved_hours", "By how much less the jobs of the last 24 hours waited than on plain Slurm, hours, by account.", "account"),
		lost:  gauges("usage_time_lost_hours", "By how much longer the jobs of the last 24 hours ran for sharing a GPU, hours, by account.", "account"),
	}
}

func (u *usageMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{u.hours, u.saved, u.lost}
}

// Usage shows what GPUs were used for in the last day, by account; hidden: without their names.
func (m *Metrics) Usage(r *usage.Report, hidden bool) {
	if m == nil {
		return
	}
	u := &m.usage
	u.hours.Reset()
	u.saved.Reset()
	u.lost.Reset()
	if r == nil {
		return
	}
	lines := r.Lines
	if hidden {
		lines = []usage.Line{r.Total}
		lines[0].Name = otherAccounts
	}
	add := func(g *prometheus.GaugeVec, v *float64, labels ...string) {
		if v != nil {
			g.WithLabelValues(labels...).Add(*v)
		}
	}
	for i := range lines {
		l := &lines[i]
		name := l.Label()
		if i >= mostAccounts {
			name = otherAccounts
		}
		add(u.hours, &l.Held, name, "held")
		add(u.hours, l.Computed, name, "computed")
		add(u.hours, l.Idle, name, "idle")
		add(u.hours, l.Shared, name, "shared")
		add(u.saved, l.WaitSaved, name)
		add(u.lost, l.TimeLost, name)
	}
}
