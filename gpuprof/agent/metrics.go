package agent

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// Metrics are a node's metrics, with the prefix gpuprof_. A GPU has series while it has jobs. No label holds users'
// text, or a job's number, which would create new series for each job.
type Metrics struct {
	figures    map[gpuprof.Fig]*prometheus.GaugeVec
	jobs       prometheus.Gauge
	withoutMPS prometheus.Gauge
	noLimits   prometheus.Gauge
	mode       *prometheus.GaugeVec
	persistent *prometheus.GaugeVec
	samples    *prometheus.CounterVec
	lies       *prometheus.CounterVec
}

// NewMetrics registers the agent's metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	auto := promauto.With(reg)
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: "gpuprof", Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "gpuprof", Name: name, Help: help}
	}
	m := &Metrics{
		figures: map[gpuprof.Fig]*prometheus.GaugeVec{},
		jobs:    auto.NewGauge(gauge("jobs", "Jobs with a GPU that run on this node.")),
		withoutMPS: auto.NewGauge(gauge("sharers_without_mps",
			"Running jobs that share a GPU and have a process on it that computes without MPS.")),
		noLimits: auto.NewGauge(gauge("mps_memory_limit_missing",
			"1 where the driver is too old (before CUDA 11.5) to hold MPS clients to a part of the memory of a card that "+
				"could, else 0.")),
		mode: auto.NewGaugeVec(gauge("compute_mode",
			"1 for the compute mode that a GPU is in: default, exclusive_process, exclusive_thread or prohibited."),
			[]string{"uuid", "mode"}),
		persistent: auto.NewGaugeVec(gauge("persistence_mode",
			"1 where the driver keeps a GPU initialised while nothing uses it, else 0."), []string{"uuid"}),
		samples: auto.NewCounterVec(counter("samples_total", "Samples of a GPU, by result (ok, error)."),
			[]string{"result"}),
		lies: auto.NewCounterVec(counter("figures_dropped_total",
			"Figures that the driver gave and that can't be true, by figure."), []string{"figure"}),
	}
	for i := range gpuprof.Recorded {
		if metric := gpuprof.Recorded[i].Metric; metric.Name != "" {
			m.figures[gpuprof.Fig(i)] = auto.NewGaugeVec(gauge(metric.Name, metric.Help), []string{"gpu", "uuid"})
		}
	}
	return m
}

// showUses publishes the figures of GPUs with jobs from the last pass. Unread figures are removed.
func (a *Agent) showUses() {
	on := a.sharers()
	for i, g := range a.gpus {
		if len(on[i]) == 0 {
			g.fresh = false // it will be stale when the next job comes
		}
		for f, gauge := range a.Metrics.figures {
			labels := []string{strconv.Itoa(i), g.dev.UUID}
			if g.fresh && g.last.reading.Has(f) {
				gauge.WithLabelValues(labels...).Set(g.last.reading.Value[f] * gpuprof.Recorded[f].Scale)
			} else {
				gauge.DeleteLabelValues(labels...)
			}
		}
	}
}

// ShowHooks exports what this node's hooks would find at a job's start with that settings file, read at each scrape:
// slurmbridge doctor reads it from the controller. node is the node's name in Slurm.
func ShowHooks(reg prometheus.Registerer, settings, node string) {
	show := func(name, help string, value func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "gpuprof", Name: name, Help: help}, value))
	}
	gauge := func(name, help string, is func() bool) {
		show(name, help, func() float64 {
			if is() {
				return 1
			}
			return 0
		})
	}
	show("gpus_uncertain",
		"How many of Slurm's GPUs of this node the hooks don't know for sure by its configuration: their jobs share "+
			"without MPS, and have no records.",
		func() float64 { s, _ := prolog.Load(settings); return float64(s.Uncertain(node)) })
	gauge("hook_settings_ok",
		"1 where the hooks' settings (node.yaml) make sense, 0 where a default takes the place of one that doesn't; the "+
			"log names it.",
		func() bool { _, err := prolog.Load(settings); return err == nil })
	gauge("mps_control_present",
		"1 where nvidia-cuda-mps-control and its server are there for the hooks to start, 0 where jobs that share a GPU "+
			"take turns instead.",
		func() bool { s, _ := prolog.Load(settings); return s.HasMPS() })
}
