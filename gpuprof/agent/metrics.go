package agent

import (
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// Metrics is what operations sees of a node, under the prefix gpuprof_. There are series only of GPUs that have jobs,
// and of jobs that run: both go away with the job. Nothing that users write is in a label.
type Metrics struct {
	gauges []figure
	uses   atomic.Pointer[[]use]

	jobs       prometheus.Gauge
	withoutMPS prometheus.Gauge
	noLimits   prometheus.Gauge
	mode       *prometheus.GaugeVec
	samples    *prometheus.CounterVec
	lies       *prometheus.CounterVec
	records    prometheus.Counter
}

// figure is a gauge of one figure of a GPU, or of each job on it.
type figure struct {
	*prometheus.Desc
	figure gpuprof.Fig
	ofJob  bool
}

// use is what a GPU with jobs did in the last sample.
type use struct {
	gpu     int
	uuid    string
	reading gpuprof.Reading
	jobs    []int64 // that run on it
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
		jobs: auto.NewGauge(gauge("jobs", "Jobs with a GPU that run on this node.")),
		withoutMPS: auto.NewGauge(gauge("sharers_without_mps",
			"Running jobs that share a GPU and have a process on it that computes without MPS.")),
		noLimits: auto.NewGauge(gauge("mps_memory_limit_missing",
			"1 where the driver is too old (before CUDA 11.5) to hold MPS clients to a part of the memory of a card that "+
				"could, else 0.")),
		mode: auto.NewGaugeVec(gauge("compute_mode",
			"1 for the compute mode that a GPU is in: default, exclusive_process, exclusive_thread or prohibited."),
			[]string{"uuid", "mode"}),
		samples: auto.NewCounterVec(counter("samples_total", "Samples of a GPU, by result (ok, error)."),
			[]string{"result"}),
		lies: auto.NewCounterVec(counter("figures_dropped_total",
			"Figures that the driver gave and that can't be true, by figure."), []string{"figure"}),
		records: auto.NewCounter(counter("records_total", "Records of jobs that were closed.")),
	}
	for i := range gpuprof.Recorded {
		for _, ofJob := range []bool{false, true} {
			metric, labels := gpuprof.Recorded[i].Metric, []string{"gpu", "uuid"}
			if ofJob {
				metric, labels = gpuprof.Recorded[i].JobMetric, []string{"job", "gpu"}
			}
			if metric.Name != "" {
				desc := prometheus.NewDesc("gpuprof_"+metric.Name, metric.Help, labels, nil)
				m.gauges = append(m.gauges, figure{desc, gpuprof.Fig(i), ofJob})
			}
		}
	}
	reg.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector for the gauges of use.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range m.gauges {
		ch <- g.Desc
	}
}

// Collect implements prometheus.Collector: the last sample, as it was published whole.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	uses := m.uses.Load()
	if uses == nil {
		return
	}
	for _, u := range *uses {
		gpu := strconv.Itoa(u.gpu)
		for _, g := range m.gauges {
			if !u.reading.Has(g.figure) {
				continue // a figure that wasn't read is not shown
			}
			v := u.reading.Value[g.figure] * gpuprof.Recorded[g.figure].Scale
			if !g.ofJob {
				ch <- prometheus.MustNewConstMetric(g.Desc, prometheus.GaugeValue, v, gpu, u.uuid)
				continue
			}
			for _, id := range u.jobs {
				ch <- prometheus.MustNewConstMetric(g.Desc, prometheus.GaugeValue, v, strconv.FormatInt(id, 10), gpu)
			}
		}
	}
}

// showUses publishes the GPUs that have jobs and were read in the last pass.
func (a *Agent) showUses() {
	on := a.sharers()
	var out []use
	for i, g := range a.gpus {
		jobs := on[i]
		if len(jobs) == 0 {
			g.fresh = false // stale by the time the next job comes
		}
		if !g.fresh {
			continue
		}
		slices.Sort(jobs)
		out = append(out, use{i, g.dev.UUID, g.last.reading, jobs})
	}
	a.Metrics.uses.Store(&out)
}

// ShowHooks exports what the hooks of this node, with that settings file, would find at a job's start, read at each
// scrape: slurmbridge doctor reads it from the controller. node is Slurm's name of this node.
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
