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

// slack is by how much readings at slightly different moments may exceed what is possible.
const slack = 1.05

// stale is after how many periods a figure that counts from the reading before says nothing of a job.
const stale = 20

// observed is one reading of a GPU.
type observed struct {
	at      time.Time
	reading gpuprof.Reading
	gpm     bool            // core use is performance monitoring's
	lied    gpuprof.Figures // figures that were given and can't be true
	// own holds what jobs used by themselves, if processes distinguish them; told holds the figures for which they do.
	own  map[int64]gpuprof.Reading
	told gpuprof.Figures
	// judging: it isn't decided yet whether the driver's samples of processes are the clients' own, so the jobs' core use
	// is unknown.
	judging bool
	// clients are each job's processes.
	clients map[int64]clients
}

// clients are the processes of a job on a GPU: how many, the most memory that one holds, and whether one
// of them computes without MPS.
type clients struct {
	n          int
	mostMiB    float64
	withoutMPS bool
}

// observe reads a GPU for the jobs on it. It returns an error where nothing could be
// read, and then of the look only what was a lie, or where the GPU is lost.
func (a *Agent) observe(g *gpu, jobs []int64, now time.Time) (observed, error) {
	l := observed{at: now}
	r := &l.reading
	err, aerr := g.figures(&l), g.activity(&l)
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

// figures reads utilisation, memory and power, each by itself.
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

// activity takes what performance monitoring saw since the last look.
func (g *gpu) activity(l *observed) error {
	r := &l.reading
	act, err := g.card.Activity()
	if err == nil && l.at.Sub(g.seen) > stale*g.pace.period {
		err = nvml.ErrNotYet // it is of the time before the job, most of it
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
		r.Set(gpuprof.FigPCIe, act.PCIeMBps) // over all of the time since the last reading, where the other way is 20 ms
	}
	return nil
}

// traffic is PCIe as it was read last.
type traffic struct {
	at   time.Time
	mbps float64
	err  error
}

// pcie reads the traffic where performance monitoring doesn't give it. It takes the driver so long that it is read at
// most once a period; the last value holds until then.
func (g *gpu) pcie(l *observed) error {
	t := &g.traffic
	if age := l.at.Sub(t.at); t.at.IsZero() || age < 0 || age >= g.pace.period-g.pace.least() {
		mbps, err := g.card.PCIe()
		*t = traffic{l.at, mbps, err}
	}
	return g.take(l, gpuprof.FigPCIe, t.mbps, t.err)
}

// take takes a figure over into the reading if it can be true. It returns err, but for a figure that the card hasn't.
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

// most is the largest value of a figure that can be true of the GPU.
func (g *gpu) most(f gpuprof.Fig) float64 {
	of := map[gpuprof.Fig]float64{gpuprof.FigMem: g.dev.MemMiB, gpuprof.FigPCIe: g.dev.PCIeMBps}
	return cmp.Or(of[f], gpuprof.Recorded[f].Most)
}

// contradict drops a zero that other figures belie.
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

// processes distinguishes jobs by their processes: memory where each process is some
// job's, core use where the driver measures it by process.
func (a *Agent) processes(g *gpu, jobs []int64, l *observed) {
	sms, known := g.sms(l)
	list, _ := g.card.Processes() // nil where it fails
	owners, unknown := map[int]owner{}, false
	l.clients = map[int64]clients{}
	before := g.without
	g.without = map[int]bool{}
	for _, p := range list {
		o := a.owner(p.PID)
		id := o.job
		owners[p.PID] = o
		g.saw(p.PID, id, l.at)
		unknown = unknown || id == 0 && !(o.server && g.dev.MPS.OwnAddresses) // a server that stands for all its clients, say
		if id != 0 && p.MemMiB >= 0 && p.MemMiB <= g.most(gpuprof.FigMem) {
			c := l.clients[id]
			l.clients[id] = clients{c.n + 1, max(c.mostMiB, p.MemMiB), c.withoutMPS || p.WithoutMPS && before[p.PID]}
		}
		// A process that ends while NVML is read can be missing in one of its lists: two readings must agree.
		g.without[p.PID] = p.WithoutMPS
	}
	if len(jobs) < 2 {
		// Alone, all that runs there is the job's.
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
	own, told := map[int64]gpuprof.Reading{}, gpuprof.Of(gpuprof.FigMem)
	if known {
		theirs, decided := true, true
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

// processesFor is how long the agent remembers the job of a process that has ended: a hook may read later in the MPS
// server's log that the process broke the server.
const processesFor = 10 * time.Minute

// saw notes the job of a process on the GPU, and forgets the processes that ended long ago.
func (g *gpu) saw(pid int, job int64, now time.Time) {
	maps.DeleteFunc(g.processes, func(_ int, p process) bool { return now.Sub(p.at) > processesFor })
	if g.processes == nil {
		g.processes = map[int]process{}
	}
	delete(g.processes, pid) // of an earlier process
	if job != 0 {
		g.processes[pid] = process{job, now}
	}
}

// jobsOf are the jobs of processes that were on the GPU of late; none where one of them isn't known.
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

// remembered is for how long a process's use holds: the driver measures it once a second or oftener.
const remembered = 2 * time.Second

// sms is the SM utilisation of each process of late; false = not known.
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
		g.uses, g.usesRead = map[int]float64{}, l.at
		for pid, u := range newest {
			g.uses[pid] = u.SM
		}
	}
	if age := l.at.Sub(g.usesRead); age < 0 || age > remembered {
		// Nothing used the GPU, as the driver says too, or this can't be believed.
		g.uses = nil
		return nil, l.reading.Has(gpuprof.FigGPU) && l.reading.Value[gpuprof.FigGPU] < gpuprof.IdleBelow
	}
	return g.uses, true
}

// samples is what the driver's samples of processes added up to, next to what the GPU did: sums over the time, of which
// older parts count less. A sample has one process for each engine, the one that was active on it when the sample was
// taken (NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE in ctrl2080perf.h of NVIDIA's open kernel modules, df1c9a3de2).
// Which one that is while MPS clients compute side by side no card has shown yet: each in its turn, one of them always,
// or their server. So the samples are the clients' own only while they add up, and only where two clients have had some
// at once: a client that is never sampled may do nothing, or be one of those that the driver leaves out.
type samples struct {
	at              time.Time // of the last reading
	over            float64   // s
	clients, server float64   // s in which the samples say that they computed
	device          float64   // s in which the GPU did
	apart           bool      // two clients had samples at once
}

const (
	samplesFade   = 30.0 // s after which a part of the time counts a third
	samplesEnough = 5.0  // s from which on they are judged
	samplesOff    = 0.1  // by which part of the GPU's use the clients' may differ from it
	samplesRound  = 0.02 // of the time: percentages are whole numbers, and read at different moments
)

// weigh adds a reading of a GPU that several jobs share. A process that has ended belongs to no job.
func (a *Agent) weigh(g *gpu, owners map[int]owner, sms map[int]float64, l *observed) {
	s := &g.samples
	took := l.at.Sub(s.at).Seconds()
	if s.at.IsZero() || took < 0 || took > samplesFade {
		took = 0 // the GPU wasn't read in between
	}
	s.at = l.at
	server, clients, busy := 0.0, 0.0, map[int64]bool{}
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

// ofClients reports whether the samples are the clients' own, and whether that is known yet.
func (s *samples) ofClients() (is, known bool) {
	round := samplesRound * s.over
	is = s.apart && math.Abs(s.clients-s.device) <= samplesOff*s.device+round && s.server <= round
	return is, s.over >= samplesEnough
}

// owner is whose a process is: a job's, or it is an MPS server, which belongs to no job. Where nothing is known both
// are zero.
type owner struct {
	job    int64
	server bool
}

// owner finds a process's job by its control group, or where Slurm doesn't use them by the step that is its ancestor.
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

// jobNamed is the job with a prolog that was given this SLUID; 0 = none is known.
func (a *Agent) jobNamed(sluid string) int64 {
	for r, t := range a.jobs {
		if t.job.SLUID == sluid {
			return r.ID
		}
	}
	return 0
}
