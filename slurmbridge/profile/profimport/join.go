package profimport

import (
	"math"
	"slices"
	"strings"

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

// card names the GPU that a series is of.
func card(s *Series) string {
	for _, label := range []string{"UUID", "uuid"} {
		if id := s.Labels[label]; id != "" {
			return id
		}
	}
	return s.Labels["Hostname"] + " " + s.Labels["instance"] + " " + s.Labels["gpu"]
}

// host is the node that a series comes from, without domain and port.
func host(s *Series) string {
	h := s.Labels["Hostname"]
	if h == "" {
		h, _, _ = strings.Cut(s.Labels["instance"], ":")
	}
	h, _, _ = strings.Cut(h, ".")
	return h
}

// Index finds series by job.
type Index struct {
	byJob  map[string][]*Series
	byHost map[string][]*Series // of series that name no job
	// together holds the jobs that had a GPU at the same instant.
	together map[string]bool
}

// NewIndex sorts series by the label that names the job, dcgm-exporter's hpc_job
// where it is "". Series of other metrics are passed over.
func NewIndex(series []Series, label string) *Index {
	if label == "" {
		label = "hpc_job"
	}
	x := &Index{map[string][]*Series{}, map[string][]*Series{}, map[string]bool{}}
	type instant struct {
		card string
		t    float64
	}
	owner := map[instant]string{}
	for i := range series {
		s := &series[i]
		m, ok := metrics[s.Metric]
		if !ok {
			continue
		}
		job := s.Labels[label]
		if job == "" || job == "0" {
			x.byHost[host(s)] = append(x.byHost[host(s)], s)
			continue
		}
		x.byJob[job] = append(x.byJob[job], s)
		if m.figure != memory {
			continue
		}
		for _, t := range s.T {
			at := instant{card(s), t}
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
	own = slices.DeleteFunc(slices.Clone(own), func(s *Series) bool {
		return len(s.T) == 0 || s.T[0] > float64(j.End.Unix()) || s.T[len(s.T)-1] < float64(j.Start.Unix())
	})
	if len(own) == 0 {
		return Run{}, noSeries
	}
	from := "dcgm-exporter"
	for _, s := range own {
		switch {
		case s.Labels["GPU_I_ID"] != "":
			return Run{}, onMIG
		case card(s) != card(own[0]):
			return Run{}, manyGPUs
		}
		if strings.HasPrefix(s.Metric, "nvidia_smi_") {
			from = "nvidia_gpu_exporter"
		}
	}
	p, unknown, why := profile(j, own)
	return Run{Job: j, Profile: p, Unknown: unknown, From: from}, why
}

// profile puts a job's series on one grid: a point a sample, at most
// gpuprof.MaxPoints; the mean of what flows and the largest memory of each.
func profile(j *Job, own []*Series) (p *rlcore.Profile, unknown []string, why string) {
	start, length := float64(j.Start.UnixNano())/1e9, j.End.Sub(j.Start).Seconds()
	period := length
	for _, s := range own {
		if metrics[s.Metric].figure == memory {
			period = spacing(s)
		}
	}
	n := min(max(int(length/max(period, 1e-3)), 1), gpuprof.MaxPoints)
	p = &rlcore.Profile{DurationS: length, PeriodS: length / float64(n), Series: make([]rlcore.Use, n), Runs: 1}
	grids := [figures][]float64{}
	for _, f := range []figure{utilisation, memory, core, pcie} {
		for rank := range 2 {
			for _, s := range own {
				m := metrics[s.Metric]
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
func spacing(s *Series) float64 {
	if len(s.T) < 2 {
		return 60
	}
	gaps := make([]float64, len(s.T)-1)
	for i := range gaps {
		gaps[i] = s.T[i+1] - s.T[i]
	}
	slices.Sort(gaps)
	return gaps[len(gaps)/2]
}

// grid returns n points of a series, NaN where it has no sample.
func grid(s *Series, m metric, n int, start, period float64) []float64 {
	sums, counts := make([]float64, n), make([]int, n)
	for i, t := range s.T {
		v := s.V[i] * m.factor
		k := int(math.Floor((t - start) / period))
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
	gaps, last := 0, math.NaN()
	for pass := range 2 {
		for i := range g {
			k := i
			if pass == 1 {
				k = len(g) - 1 - i
			}
			switch {
			case !math.IsNaN(g[k]):
				last = g[k]
			default:
				if pass == 0 {
					gaps++
				}
				g[k] = last
			}
		}
	}
	return gaps*10 <= len(g)
}
