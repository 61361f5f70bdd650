package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/prolog"
)

// Hooks exports what the hooks of this node would find at a job's start, read at each
// scrape: slurmbridge doctor reads it from the controller.
type Hooks struct {
	settings string // their settings' file
	ok, mps  *prometheus.Desc
}

// NewHooks makes the metrics of the hooks with that settings file.
func NewHooks(settings string) *Hooks {
	return &Hooks{
		settings: settings,
		ok: prometheus.NewDesc("gpuprof_hook_settings_ok",
			"1 where the hooks' settings (node.yaml) make sense, 0 where a default takes the place of one that doesn't; the log names it.", nil, nil),
		mps: prometheus.NewDesc("gpuprof_mps_control_present",
			"1 where nvidia-cuda-mps-control is there for the hooks to start, 0 where jobs that share a GPU take turns instead.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (h *Hooks) Describe(ch chan<- *prometheus.Desc) { ch <- h.ok; ch <- h.mps }

// Collect implements prometheus.Collector.
func (h *Hooks) Collect(ch chan<- prometheus.Metric) {
	s, err := prolog.Load(h.settings)
	gauge := func(d *prometheus.Desc, is bool) {
		v := 0.0
		if is {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	gauge(h.ok, err == nil)
	gauge(h.mps, s.HasMPS())
}
