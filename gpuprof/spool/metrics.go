package spool

import "github.com/prometheus/client_golang/prometheus"

// Metrics is what operations sees of delivery on a node, under the prefix
// gpuprof_.
type Metrics struct {
	records, bytes, limit *prometheus.GaugeVec
	series                prometheus.Counter
	dropped               *prometheus.CounterVec
	writeErrors           *prometheus.CounterVec
	tries                 *prometheus.CounterVec
	last                  prometheus.Gauge
}

// NewMetrics registers the metrics of delivery with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	gauges := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "gpuprof", Name: name, Help: help + ", by place: disk, or memory while the disk takes none."}, []string{"place"})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gpuprof", Name: name, Help: help}, labels)
	}
	m := &Metrics{
		records:     gauges("spool_records", "Records that wait for the controller"),
		bytes:       gauges("spool_bytes", "Size of what waits and of what was set aside"),
		limit:       gauges("spool_limit_bytes", "Size from which on series are dropped, then records"),
		series:      prometheus.NewCounter(prometheus.CounterOpts{Namespace: "gpuprof", Name: "spool_series_dropped_total", Help: "Records with a series that was dropped for lack of space; their summaries were kept."}),
		dropped:     counters("spool_records_dropped_total", "Records that the controller will not get, by reason: full (no space was left), unreadable (half a file), refused (by the controller).", "reason"),
		writeErrors: counters("spool_write_errors_total", "Records that could not be written, by place; the next place was tried, or they were tried again.", "place"),
		tries:       counters("deliveries_total", "Tries to deliver a record, by result: ok, refused, error (it is tried again).", "result"),
		last:        prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "gpuprof", Name: "last_delivery_timestamp_seconds", Help: "When the controller last took a record, as a Unix time; 0 = not since the start."}),
	}
	for _, place := range []string{disk, memory} {
		m.writeErrors.WithLabelValues(place)
	}
	for _, reason := range []string{"full", "unreadable", "refused"} {
		m.dropped.WithLabelValues(reason)
	}
	for _, result := range []string{"ok", "refused", "error"} {
		m.tries.WithLabelValues(result)
	}
	reg.MustRegister(m.records, m.bytes, m.limit, m.series, m.dropped, m.writeErrors, m.tries, m.last)
	return m
}

// show publishes how full the places are.
func (m *Metrics) show(folders []*folder) {
	for _, f := range folders {
		m.records.WithLabelValues(f.place).Set(float64(f.n))
		m.bytes.WithLabelValues(f.place).Set(float64(f.used))
		m.limit.WithLabelValues(f.place).Set(float64(f.limit))
	}
}

func (m *Metrics) tried(result string) {
	m.tries.WithLabelValues(result).Inc()
	if result == "ok" {
		m.last.SetToCurrentTime()
	}
}
