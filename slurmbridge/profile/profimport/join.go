package profimport

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// figure is one of the four resources.
type figure int

const (
	utilisation figure = iota
	memory
	core
	pcie
	figures
)

// metric says what a series means: its figure, and by what its values are multiplied.
// Of several metrics for one utilisation the one of lower rank counts; PCIe's two
// directions add up.
type metric struct {
	figure figure
	factor float64
	rank   int
}

// Metrics that are read. Names and units: dcgm-exporter's etc/default-counters.csv and
// NVIDIA's list of DCGM fields; nvidia_gpu_exporter's docs/METRICS.md. PCIe traffic
// of DCGM_FI_DEV_PCIE_*_THROUGHPUT is left out: its unit and kind differ by release.
var metrics = map[string]metric{
	"DCGM_FI_DEV_GPU_UTIL":                           {utilisation, 0.01, 0},
	"DCGM_FI_PROF_GR_ENGINE_ACTIVE":                  {utilisation, 1, 1},
	"DCGM_FI_DEV_FB_USED":                            {memory, 1, 0}, // MiB
	"DCGM_FI_PROF_SM_ACTIVE":                         {core, 1, 0},
	"DCGM_FI_PROF_PCIE_TX_BYTES":                     {pcie, 1e-6, 0}, // bytes a second
	"DCGM_FI_PROF_PCIE_RX_BYTES":                     {pcie, 1e-6, 1},
	"nvidia_smi_utilization_gpu_ratio":               {utilisation, 1, 0},
	"nvidia_smi_memory_used_bytes":                   {memory, 1.0 / (1 << 20), 0},
	"nvidia_smi_pcie_throughput_tx_bytes_per_second": {pcie, 1e-6, 0},
	"nvidia_smi_pcie_throughput_rx_bytes_per_second": {pcie, 1e-6, 1},
}

// most is what a figure can be at most; DCGM prints its blanks as numbers near 2^63.
var most = [figures]float64{1.001, mostMiB, 1.001, 1e6}

// series is one series of a range query's answer, its samples in order of time.
type series = *model.SampleStream

func meaning(s series) (metric, bool) {
	m, ok := metrics[string(s.Metric[model.MetricNameLabel])]
	return m, ok
}

// card names the GPU that a series is of.
func card(s series) string {
	by := s.Metric["Hostname"] + " " + s.Metric["instance"] + " " + s.Metric["gpu"]
	return string(cmp.Or(s.Metric["UUID"], s.Metric["uuid"], by))
}

// host is the node that a series comes from, without domain and port.
func host(s series) string {
	instance, _, _ := strings.Cut(string(s.Metric["instance"]), ":")
	h, _, _ := strings.Cut(cmp.Or(string(s.Metric["Hostname"]), instance), ".")
	return h
}

// Index finds series by job.
type Index struct {
	byJob  map[string][]series
	byHost map[string][]series // of series that name no job
	// together holds the jobs that had a GPU at the same instant.
	together map[string]bool
}

// NewIndex sorts series by the label that names the job, dcgm-exporter's hpc_job
// where it is "". Series of other metrics are passed over.
func NewIndex(all model.Matrix, label string) *Index {
	x := &Index{map[string][]series{}, map[string][]series{}, map[string]bool{}}
	type instant struct {
		card string
		t    model.Time
	}
	owner := map[instant]string{}
	for _, s := range all {
		m, ok := meaning(s)
		if !ok {
			continue
		}
		job := string(s.Metric[model.LabelName(cmp.Or(label, jobLabel))])
		if job == "" || job == "0" {
			x.byHost[host(s)] = append(x.byHost[host(s)], s)
			continue
		}
		x.byJob[job] = append(x.byJob[job], s)
		if m.figure != memory {
			continue
		}
		for _, v := range s.Values {
			at := instant{card(s), v.Timestamp}
			if other, there := owner[at]; there && other != job {
				x.together[other], x.together[job] = true, true
			}
			owner[at] = job
		}
	}
	return x
}

// Join makes runs of jobs and the series of their GPUs. A series without a job's name
// is a job's where it is of the only GPU of the job's only node.
func Join(jobs []Job, x *Index) ([]Run, table.Skipped) {
	skipped := table.Skipped{}
	var out []Run
	for i := range jobs {
		j := &jobs[i]
		why := usable(j)
		var r Run
		if why == "" {
			r, why = x.run(j)
		}
		if why != "" {
			skipped[why]++
			continue
		}
		out = append(out, r)
	}
	return out, skipped
}

// run makes a run of one job, or says why not.
func (x *Index) run(j *Job) (Run, string) {
	own := x.byJob[j.RawID]
	if len(own) == 0 {
		own = x.byJob[j.ID]
	}
	switch {
	case x.together[j.RawID] || x.together[j.ID]:
		return Run{}, shared
	case len(own) == 0:
		own = x.byHost[strings.Split(j.Nodes, ".")[0]]
		for _, s := range own {
			if card(s) != card(own[0]) {
				return Run{}, whichGPU
			}
		}
	}
	own = slices.DeleteFunc(slices.Clone(own), func(s series) bool {
		n := len(s.Values)
		return n == 0 || s.Values[0].Timestamp.After(model.TimeFromUnix(j.End.Unix())) || s.Values[n-1].Timestamp.Before(model.TimeFromUnix(j.Start.Unix()))
	})
	if len(own) == 0 {
		return Run{}, noSeries
	}
	from := "dcgm-exporter"
	for _, s := range own {
		switch {
		case s.Metric["GPU_I_ID"] != "":
			return Run{}, onMIG
		case card(s) != card(own[0]):
			return Run{}, manyGPUs
		}
		if strings.HasPrefix(string(s.Metric[model.MetricNameLabel]), "nvidia_smi_") {
			from = "nvidia_gpu_exporter"
		}
	}
	p, unknown, why := profile(j, own)
	return Run{Job: j, Profile: p, Unknown: unknown, From: from}, why
}

// profile puts a job's series on one grid: a point a sample, at most
// gpuprof.MaxPoints; the mean of what flows and the largest memory of each.
func profile(j *Job, own []series) (p *rlcore.Profile, unknown []string, why string) {
	start, length := float64(j.Start.UnixNano())/1e9, j.End.Sub(j.Start).Seconds()
	period := length
	for _, s := range own {
		if m, _ := meaning(s); m.figure == memory {
			period = spacing(s)
		}
	}
	n := min(max(int(length/max(period, 1e-3)), 1), gpuprof.MaxPoints)
	p = &rlcore.Profile{DurationS: length, PeriodS: length / float64(n), Series: make([]rlcore.Use, n), Runs: 1}
	grids := [figures][]float64{}
	for _, f := range []figure{utilisation, memory, core, pcie} {
		for rank := range 2 {
			for _, s := range own {
				m, _ := meaning(s)
				if m.figure != f || m.rank != rank {
					continue
				}
				g := grid(s, m, n, start, p.PeriodS)
				switch have := grids[f]; {
				case have == nil:
					grids[f] = g
				case f == pcie && rank == 1:
					for i := range g {
						have[i] += g[i]
					}
				default:
					// An exporter that is restarted with another label continues a series as
					// another one; and the weaker metric may have values that the better one lacks.
					for i := range g {
						if math.IsNaN(have[i]) {
							have[i] = g[i]
						}
					}
				}
			}
		}
	}
	if grids[memory] == nil {
		return nil, nil, noMemory
	}
	if !filled(grids[memory]) || grids[utilisation] != nil && !filled(grids[utilisation]) {
		return nil, nil, fewSamples
	}
	for f, name := range []string{"utilisation", "memory", "SM use", "PCIe"} {
		if f != int(memory) && (grids[f] == nil || !filled(grids[f])) {
			grids[f] = nil
			unknown = append(unknown, name)
		}
	}
	for i := range p.Series {
		u := &p.Series[i]
		u.MemMiB, u.GPU = grids[memory][i], 1
		if g := grids[utilisation]; g != nil {
			u.GPU = min(g[i], 1)
		}
		u.Core = coreShare * u.GPU
		if g := grids[core]; g != nil {
			u.Core = min(g[i], 1)
		}
		if g := grids[pcie]; g != nil {
			u.PCIeMBps = g[i]
		}
	}
	if p.Peak().MemMiB <= 0 || p.Validate() != nil {
		return nil, nil, noMemory
	}
	return p, unknown, ""
}

// spacing is the usual time between two samples, s.
func spacing(s series) float64 {
	if len(s.Values) < 2 {
		return 60
	}
	gaps := make([]time.Duration, len(s.Values)-1)
	for i := range gaps {
		gaps[i] = s.Values[i+1].Timestamp.Sub(s.Values[i].Timestamp)
	}
	slices.Sort(gaps)
	return gaps[len(gaps)/2].Seconds()
}

// grid returns n points of a series, NaN where it has no sample.
func grid(s series, m metric, n int, start, period float64) []float64 {
	sums, counts := make([]float64, n), make([]int, n)
	for _, pair := range s.Values {
		v := float64(pair.Value) * m.factor
		k := int(math.Floor((float64(pair.Timestamp)/1000 - start) / period))
		if !(v >= 0 && v <= most[m.figure]) || k < 0 || k >= n {
			continue
		}
		if counts[k]++; m.figure == memory {
			sums[k] = max(sums[k], v)
		} else {
			sums[k] += (v - sums[k]) / float64(counts[k])
		}
	}
	for k := range sums {
		if counts[k] == 0 {
			sums[k] = math.NaN()
		}
	}
	return sums
}

// filled fills gaps with what was there before, or after a gap at the start, and
// reports whether they are at most a tenth.
func filled(g []float64) bool {
	first := slices.IndexFunc(g, func(v float64) bool { return !math.IsNaN(v) })
	if first < 0 {
		return false
	}
	gaps, last := 0, g[first]
	for i, v := range g {
		if math.IsNaN(v) {
			gaps++
			g[i] = last
		}
		last = g[i]
	}
	return gaps*10 <= len(g)
}
