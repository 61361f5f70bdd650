package agent

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

// Metrics is what operations sees of a node, under the prefix gpuprof_. A nil
// *Metrics counts nothing.
type Metrics struct {
	util, mem, pcie, power *prometheus.GaugeVec
	jobs                   prometheus.Gauge
	samples                *prometheus.CounterVec
	records                prometheus.Counter
}

// NewMetrics registers the agent's metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	labels := []string{"gpu", "uuid"}
	vec := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "gpuprof", Name: name, Help: help}, labels)
	}
	m := &Metrics{
		util:    vec("gpu_utilization_ratio", "Fraction of the last sample period in which a kernel ran, while the GPU has jobs."),
		mem:     vec("gpu_memory_used_bytes", "Device memory in use, while the GPU has jobs."),
		pcie:    vec("gpu_pcie_bytes_per_second", "PCIe traffic in both directions, while the GPU has jobs."),
		power:   vec("gpu_power_watts", "Power drawn, while the GPU has jobs."),
		jobs:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "gpuprof", Name: "jobs", Help: "Jobs with a GPU that run on this node."}),
		samples: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gpuprof", Name: "samples_total", Help: "Samples of a GPU, by result (ok, error)."}, []string{"result"}),
		records: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "gpuprof", Name: "records_total", Help: "Records of jobs that were closed."}),
	}
	reg.MustRegister(m.util, m.mem, m.pcie, m.power, m.jobs, m.samples, m.records)
	return m
}

func (m *Metrics) sampled(gpu int, d nvml.Device, s nvml.Sample, err error) {
	if m == nil {
		return
	}
	if err != nil {
		m.samples.WithLabelValues("error").Inc()
		return
	}
	m.samples.WithLabelValues("ok").Inc()
	id := strconv.Itoa(gpu)
	m.util.WithLabelValues(id, d.UUID).Set(s.GPU)
	m.mem.WithLabelValues(id, d.UUID).Set(s.MemMiB * (1 << 20))
	m.pcie.WithLabelValues(id, d.UUID).Set(s.PCIeMBps * 1e6)
	m.power.WithLabelValues(id, d.UUID).Set(s.PowerW)
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
