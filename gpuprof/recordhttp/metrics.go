package recordhttp

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is what the controller shows of delivery, under the prefix slurmbridge_.
type Metrics struct {
	skew     prometheus.Histogram
	bytes    prometheus.Histogram
	refusals *prometheus.CounterVec
}

// NewMetrics registers the controller's metrics of delivery with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		skew: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "slurmbridge", Name: "record_clock_skew_seconds",
			Help:    "Difference of a node's clock and the controller's, in either direction, at each record; counted in whole seconds.",
			Buckets: []float64{1, 2, 5, 10, 30, 60, 120, 300, 600},
		}),
		bytes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "slurmbridge", Name: "record_size_bytes", Help: "Size of records on the wire.",
			Buckets: prometheus.ExponentialBuckets(512, 2, 10),
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "slurmbridge", Name: "record_refusals_total",
			Help: "Records refused, by reason: credential (none, forged, another key, used before), clock (sender's and controller's differ too much), user (who may not send), body (too large, too slow), record (it can't be true).",
		}, []string{"reason"}),
	}
	reg.MustRegister(m.skew, m.bytes, m.refusals)
	return m
}
