package agent

import (
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// Metrics is what operations sees of a node, under the prefix gpuprof_. There are
// series only of GPUs that have jobs, and of jobs that run: both go away with the
// job. Nothing that users write is in a label. A nil *Metrics counts nothing.
type Metrics struct {
	util, mem, pcie, power *prometheus.Desc
	jobUtil, jobMem        *prometheus.Desc
	uses                   atomic.Pointer[[]use]

	jobs    prometheus.Gauge
	samples *prometheus.CounterVec
	lies    *prometheus.CounterVec
	records prometheus.Counter
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
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("gpuprof_"+name, help, labels, nil)
	}
	m := &Metrics{
		util:    desc("gpu_utilization_ratio", "Fraction of the last sample period in which a kernel ran, while the GPU has jobs.", "gpu", "uuid"),
		mem:     desc("gpu_memory_used_bytes", "Device memory in use, while the GPU has jobs.", "gpu", "uuid"),
		pcie:    desc("gpu_pcie_bytes_per_second", "PCIe traffic in both directions, while the GPU has jobs.", "gpu", "uuid"),
		power:   desc("gpu_power_watts", "Power drawn, while the GPU has jobs.", "gpu", "uuid"),
		jobUtil: desc("job_gpu_utilization_ratio", "Utilization of a running job's GPU as in gpuprof_gpu_utilization_ratio; jobs that share the GPU show the same, what they do together.", "job", "gpu"),
		jobMem:  desc("job_gpu_memory_used_bytes", "Device memory in use on a running job's GPU; jobs that share the GPU show the same, what they use together.", "job", "gpu"),
		jobs:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "gpuprof", Name: "jobs", Help: "Jobs with a GPU that run on this node."}),
		samples: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gpuprof", Name: "samples_total", Help: "Samples of a GPU, by result (ok, error)."}, []string{"result"}),
		lies:    prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gpuprof", Name: "figures_dropped_total", Help: "Figures that the driver gave and that can't be true, by figure."}, []string{"figure"}),
		records: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "gpuprof", Name: "records_total", Help: "Records of jobs that were closed."}),
	}
	reg.MustRegister(m, m.jobs, m.samples, m.lies, m.records)
	return m
}

// Describe implements prometheus.Collector for the gauges of use.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.util, m.mem, m.pcie, m.power, m.jobUtil, m.jobMem} {
		ch <- d
	}
}

// Collect implements prometheus.Collector: the last sample, as it was published
// whole.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	uses := m.uses.Load()
	if uses == nil {
		return
	}
	for _, u := range *uses {
		r, gpu := &u.reading, strconv.Itoa(u.gpu)
		bytes := r.MemMiB * (1 << 20)
		// A figure that wasn't read is not shown.
		gauge := func(f gpuprof.Figures, d *prometheus.Desc, v float64, labels ...string) {
			if r.Has&f != 0 {
				ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
			}
		}
		gauge(gpuprof.FigGPU, m.util, r.GPU, gpu, u.uuid)
		gauge(gpuprof.FigMem, m.mem, bytes, gpu, u.uuid)
		gauge(gpuprof.FigPCIe, m.pcie, r.PCIeMBps*1e6, gpu, u.uuid)
		gauge(gpuprof.FigPower, m.power, r.PowerW, gpu, u.uuid)
		for _, id := range u.jobs {
			job := strconv.FormatInt(id, 10)
			gauge(gpuprof.FigGPU, m.jobUtil, r.GPU, job, gpu)
			gauge(gpuprof.FigMem, m.jobMem, bytes, job, gpu)
		}
	}
}

// uses lists the GPUs that have jobs and were read in the last pass.
func (a *Agent) uses() []use {
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
		uuid := g.dev.UUID
		if g.mig != "" {
			uuid = g.mig
		}
		out = append(out, use{i, uuid, g.look.reading, jobs})
	}
	return out
}

func (m *Metrics) dropped(lied gpuprof.Figures) {
	if m == nil {
		return
	}
	for _, name := range lied.Names() {
		m.lies.WithLabelValues(name).Inc()
	}
}

func (m *Metrics) show(uses []use) {
	if m != nil {
		m.uses.Store(&uses)
	}
}

func (m *Metrics) sampled(err error) {
	if m == nil {
		return
	}
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.samples.WithLabelValues(result).Inc()
}

func (m *Metrics) running(n int) {
	if m != nil {
		m.jobs.Set(float64(n))
	}
}

func (m *Metrics) closed() {
	if m != nil {
		m.records.Inc()
	}
}
