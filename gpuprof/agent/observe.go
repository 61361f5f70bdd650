package agent

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// slack is the factor by which readings at slightly different moments may exceed the possible.
const slack = 1.05

// stale is the number of periods after which a figure since the last reading is not attributed to a job.
const stale = 20

// observed is one reading of a GPU.
type observed struct {
	at      time.Time
	reading gpuprof.Reading
	gpm     bool            // core use comes from performance monitoring
	lied    gpuprof.Figures // figures with an impossible value
	// own holds the figures of each job that its processes show, told names these figures.
	own  map[int64]gpuprof.Reading
	told gpuprof.Figures
	// judging: it is undecided whether the driver's samples of processes are the clients' own, so the jobs' core use is
	// unknown.
	judging bool
	// clients describes each job's processes.
	clients map[int64]clients
}

// clients describes the processes of a job on a GPU: their number, the most memory of one, and whether one of them
// computes without MPS.
type clients struct {
	n          int
	mostMiB    float64
	withoutMPS bool
}

// observe reads a GPU for its jobs. If nothing could be read or the GPU is lost it returns an error, and the result
// holds only lied.
func (a *Agent) observe(g *gpu, jobs []int64, now time.Time) (observed, error) {
	l := observed{at: now}
	r := &l.reading
	err := g.figures(&l)
	aerr := g.activity(&l)
	lost := errors.Is(err, nvml.ErrLost) || errors.Is(aerr, nvml.ErrLost)
	if !lost && !r.Has(gpuprof.FigPCIe) {
		perr := g.pcie(&l)
		err, lost = errors.Join(err, perr), errors.Is(perr, nvml.ErrLost)
	}
	if lost {
		return observed{}, errors.Join(err, aerr)
	}
	a.processes(g, jobs, &l)
	if !r.Has(gpuprof.FigCore) && r.Has(gpuprof.FigGPU) && !errors.Is(aerr, nvml.ErrNotYet) && !l.judging {
		r.Set(gpuprof.FigCore, r.Value[gpuprof.FigGPU]) // an upper bound
	}
	g.contradict(&l)
	g.seen = now
	if r.Empty() {
		if err == nil {
			err = errors.New("the GPU gives no figure")
		}
		return observed{lied: l.lied}, err
	}
	return l, nil
}

// figures reads utilisation, memory and power independently.
func (g *gpu) figures(l *observed) error {
	use, mem, err := g.card.Utilisation()
	_ = g.take(l, gpuprof.FigMemBusy, mem, err)
	mib, merr := g.card.Memory()
	w, perr := g.card.Power()
	if perr == nil && w == 0 { // a GPU that is on draws some
		perr = nvml.ErrImplausible
	}
	return errors.Join(g.take(l, gpuprof.FigGPU, use, err), g.take(l, gpuprof.FigMem, mib, merr),
		g.take(l, gpuprof.FigPower, w, perr))
}

// activity reads performance monitoring since the last reading.
func (g *gpu) activity(l *observed) error {
	r := &l.reading
	act, err := g.card.Activity()
	if err == nil && l.at.Sub(g.seen) > stale*g.pace.period {
		err = nvml.ErrNotYet // it covers mostly the time before the job
	}
	switch {
	case errors.Is(err, nvml.ErrImplausible) || err == nil && !fraction(act.SM):
		l.lied |= gpuprof.Of(gpuprof.FigCore)
		return err
	case err != nil:
		return err
	}
	r.Set(gpuprof.FigCore, act.SM)
	l.gpm = true
	if !r.Has(gpuprof.FigGPU) && fraction(act.Graphics) && g.dev.Parent != "" {
		r.Set(gpuprof.FigGPU, act.Graphics) // an instance has no utilisation of its own
	}
	// A card that doesn't measure it reports 0.
	g.counts = g.counts || act.PCIeMBps > 0
	if g.counts && act.PCIeMBps >= 0 && act.PCIeMBps <= g.most(gpuprof.FigPCIe) && g.dev.Parent == "" {
		r.Set(gpuprof.FigPCIe, act.PCIeMBps) // since the last reading; the other source measures 20 ms
	}
	return nil
}

// traffic is the last reading of PCIe.
type traffic struct {
	at   time.Time
	mbps float64
	err  error
}

// pcie reads the traffic if performance monitoring doesn't give it. A reading takes the driver so long that there is
// one per period at most; its value holds until the next.
func (g *gpu) pcie(l *observed) error {
	t := &g.traffic
	if age := l.at.Sub(t.at); t.at.IsZero() || age < 0 || age >= g.pace.period-g.pace.least() {
		mbps, err := g.card.PCIe()
		*t = traffic{l.at, mbps, err}
	}
	return g.take(l, gpuprof.FigPCIe, t.mbps, t.err)
}

// take stores a figure that can be true. It returns err unless the card doesn't give the figure.
func (g *gpu) take(l *observed, f gpuprof.Fig, v float64, err error) error {
	switch most := g.most(f); {
	case errors.Is(err, nvml.ErrImplausible) || err == nil && !(v >= 0 && v <= most*slack):
		l.lied |= gpuprof.Of(f)
	case err == nil:
		l.reading.Set(f, min(v, most))
	case errors.Is(err, nvml.ErrNotSupported):
		return nil
	}
	return err
}

func fraction(v float64) bool { return v >= 0 && v <= 1 }

// most returns the largest possible value of a figure on this GPU.
func (g *gpu) most(f gpuprof.Fig) float64 {
	of := map[gpuprof.Fig]float64{gpuprof.FigMem: g.dev.MemMiB, gpuprof.FigPCIe: g.dev.PCIeMBps}
	return cmp.Or(of[f], gpuprof.Recorded[f].Most)
}

// contradict drops a zero that contradicts other figures.
func (g *gpu) contradict(l *observed) {
	r := &l.reading
	drop := func(f gpuprof.Fig) {
		if r.Has(f) {
			r.Known &^= gpuprof.Of(f)
			l.lied |= gpuprof.Of(f)
		}
	}
	const sure = 0.1
	above := func(f gpuprof.Fig, least float64) bool { return r.Has(f) && r.Value[f] > least }
	if r.Value[gpuprof.FigMem] == 0 && (above(gpuprof.FigGPU, sure) || above(gpuprof.FigCore, sure)) {
		drop(gpuprof.FigMem) // no kernel runs without a context
	}
	if r.Value[gpuprof.FigGPU] == 0 && r.Value[gpuprof.FigCore] > sure && l.gpm {
		drop(gpuprof.FigGPU)
	}
	if r.Value[gpuprof.FigCore] == 0 && r.Value[gpuprof.FigGPU] > 0.5 && l.gpm {
		drop(gpuprof.FigCore)
	}
}

// processes tells the GPU's jobs apart: memory if every process belongs to a job, core use if the driver measures it
// per process.
func (a *Agent) processes(g *gpu, jobs []int64, l *observed) {
	sms, known := g.sms(l)
	list, _ := g.card.Processes() // nil where it fails
	owners := map[int]owner{}
	unknown := false
	l.clients = map[int64]clients{}
	before := g.without
	g.without = map[int]bool{}
	for _, p := range list {
		o := a.owner(p.PID)
		id := o.job
		owners[p.PID] = o
		g.saw(p.PID, id, l.at)
		unknown = unknown || id == 0 && !(o.server && g.dev.MPS.OwnAddresses) // e.g. a server with all clients' memory
		if id != 0 && p.MemMiB >= 0 && p.MemMiB <= g.most(gpuprof.FigMem) {
			c := l.clients[id]
			l.clients[id] = clients{c.n + 1, max(c.mostMiB, p.MemMiB), c.withoutMPS || p.WithoutMPS && before[p.PID]}
		}
		// A process that ends during the reading may be in one of NVML's two lists only, so two readings must agree.
		g.without[p.PID] = p.WithoutMPS
	}
	if len(jobs) < 2 {
		// Everything on the GPU is the only job's.
		if known && !l.reading.Has(gpuprof.FigCore) {
			sum := 0.0
			for _, sm := range sms {
				sum = min(1, sum+sm)
			}
			l.reading.Set(gpuprof.FigCore, sum)
		}
		return
	}
	if len(list) == 0 || unknown {
		return
	}
	own := map[int64]gpuprof.Reading{}
	told := gpuprof.Of(gpuprof.FigMem)
	if known {
		theirs := true
		decided := true
		if sms != nil {
			a.weigh(g, owners, sms, l)
			theirs, decided = g.samples.ofClients()
		}
		switch {
		case !decided:
			l.judging = true
			l.reading.Known &^= gpuprof.Of(gpuprof.FigCore)
		case theirs:
			told |= gpuprof.Of(gpuprof.FigCore)
		}
	}
	for _, p := range list {
		id := owners[p.PID].job
		if id == 0 {
			continue // an MPS server; its clients are in the list, too
		}
		u := own[id]
		u.Value[gpuprof.FigMem] += p.MemMiB
		u.Value[gpuprof.FigCore] = min(1, u.Value[gpuprof.FigCore]+sms[p.PID])
		own[id] = u
		if !(p.MemMiB >= 0) || u.Value[gpuprof.FigMem] > g.most(gpuprof.FigMem) {
			told &^= gpuprof.Of(gpuprof.FigMem)
		}
	}
	l.own, l.told = own, told
}

// processesFor is how long the agent remembers the job of an ended process, which a hook may later find blamed in the
// MPS server's log.
const processesFor = 10 * time.Minute

// saw notes the job of a process on the GPU, and forgets processes that ended long ago.
func (g *gpu) saw(pid int, job int64, now time.Time) {
	maps.DeleteFunc(g.processes, func(_ int, p process) bool { return now.Sub(p.at) > processesFor })
	if g.processes == nil {
		g.processes = map[int]process{}
	}
	delete(g.processes, pid) // the pid's earlier process
	if job != 0 {
		g.processes[pid] = process{job, now}
	}
}

// jobsOf returns the jobs of processes recently on the GPU, nil if one of them is unknown.
func (g *gpu) jobsOf(pids []int) (jobs []int64) {
	for _, pid := range pids {
		p, known := g.processes[pid]
		if !known {
			return nil
		}
		if !slices.Contains(jobs, p.job) {
			jobs = append(jobs, p.job)
		}
	}
	return jobs
}

// remembered is how long a process's use holds: the driver measures it at least once a second.
const remembered = 2 * time.Second

// sms returns the recent SM utilisation by process; false = unknown.
func (g *gpu) sms(l *observed) (map[int]float64, bool) {
	uses, err := g.card.ProcessUtilisation(g.usesAt)
	if err != nil {
		if errors.Is(err, nvml.ErrImplausible) {
			l.lied |= gpuprof.Of(gpuprof.FigCore)
		}
		return nil, false
	}
	newest := map[int]nvml.ProcessUse{}
	for _, u := range uses {
		if !fraction(u.SM) {
			l.lied |= gpuprof.Of(gpuprof.FigCore)
			return nil, false
		}
		if last, seen := newest[u.PID]; !seen || u.At.After(last.At) {
			newest[u.PID] = u
		}
		if u.At.After(g.usesAt) && !u.At.After(l.at) {
			g.usesAt = u.At
		}
	}
	if len(newest) > 0 {
		g.uses = map[int]float64{}
		g.usesRead = l.at
		for pid, u := range newest {
			g.uses[pid] = u.SM
		}
	}
	if age := l.at.Sub(g.usesRead); age < 0 || age > remembered {
		// Either nothing used the GPU, as its utilisation says, or this can't be believed.
		g.uses = nil
		return nil, l.reading.Has(gpuprof.FigGPU) && l.reading.Value[gpuprof.FigGPU] < gpuprof.IdleBelow
	}
	return g.uses, true
}

// samples compares the sum of the driver's samples of processes with the GPU's utilisation, over time, with fading
// weights. A sample names one process per engine: the one that was active when it was taken
// (NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE in ctrl2080perf.h of NVIDIA's open kernel modules, df1c9a3de2). No card
// has shown yet which process that is while MPS clients compute side by side: each in turn, always the same one, or
// their server. So the samples count as the clients' own only while they add up and after two clients had samples at
// once: a client without samples may be idle, or overlooked by the driver.
type samples struct {
	at              time.Time // last reading
	over            float64   // s
	clients, server float64   // s of computing by the samples
	device          float64   // s of computing by the GPU's utilisation
	apart           bool      // two clients had samples at once
}

const (
	samplesFade   = 30.0 // s after which a reading's weight is 1/e
	samplesEnough = 5.0  // s of samples that suffice for a decision
	samplesOff    = 0.1  // allowed difference, as a fraction of the GPU's use
	samplesRound  = 0.02 // allowed rounding: percentages are whole numbers, read at different moments
)

// weigh adds a reading of a GPU with several jobs. Ended processes belong to no job.
func (a *Agent) weigh(g *gpu, owners map[int]owner, sms map[int]float64, l *observed) {
	s := &g.samples
	took := l.at.Sub(s.at).Seconds()
	if s.at.IsZero() || took < 0 || took > samplesFade {
		took = 0 // the GPU wasn't read in between
	}
	s.at = l.at
	server := 0.0
	clients := 0.0
	busy := map[int64]bool{}
	for pid, sm := range sms {
		o, seen := owners[pid]
		if !seen {
			o = a.owner(pid)
		}
		switch {
		case o.job != 0:
			clients += sm
			if sm > 0 {
				busy[o.job] = true
			}
		case o.server:
			server += sm
		}
	}
	fade := math.Exp(-took / samplesFade)
	s.over = s.over*fade + took
	s.clients = s.clients*fade + took*clients
	s.server = s.server*fade + took*server
	s.device = s.device*fade + took*l.reading.Value[gpuprof.FigGPU]
	s.apart = s.apart || len(busy) > 1
}

// ofClients reports whether the samples are the clients' own, and whether that is decided.
func (s *samples) ofClients() (is, known bool) {
	round := samplesRound * s.over
	is = s.apart && math.Abs(s.clients-s.device) <= samplesOff*s.device+round && s.server <= round
	return is, s.over >= samplesEnough
}

// owner is the job that a process belongs to, or marks an MPS server, which belongs to none. Zero = unknown.
type owner struct {
	job    int64
	server bool
}

// owner finds a process's job by its control group or, if Slurm uses none, by the step among its ancestors.
func (a *Agent) owner(pid int) owner {
	dir := a.process(pid)
	if groups, err := os.ReadFile(filepath.Join(dir, "cgroup")); err == nil {
		job, sluid := prolog.InGroup(groups)
		if job == 0 && sluid != "" {
			job = a.jobNamed(sluid)
		}
		if job != 0 {
			return owner{job: job}
		}
	}
	if job := prolog.StepAbove(a.Proc, pid); job != 0 {
		return owner{job: job}
	}
	// The kernel cuts nvidia-cuda-mps-server to 15 bytes.
	name, err := os.ReadFile(filepath.Join(dir, "comm"))
	return owner{server: err == nil && bytes.HasPrefix(name, []byte("nvidia-cuda-mps"))}
}

func (a *Agent) process(pid int) string {
	return filepath.Join(cmp.Or(a.Proc, "/proc"), strconv.Itoa(pid))
}

// jobNamed returns the job with this SLUID by its prolog, 0 if unknown.
func (a *Agent) jobNamed(sluid string) int64 {
	for r, t := range a.jobs {
		if t.job.SLUID == sluid {
			return r.ID
		}
	}
	return 0
}
