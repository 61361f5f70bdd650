// Package rlcore decides which pending jobs run together on one GPU.
//
// It knows neither Slurm nor NVML. The bridge and the simulator fill the same State, the Guard determines which
// combinations of jobs are allowed, and a Policy scores them; see Decider.Decide.
package rlcore

import (
	"math"
	"math/bits"

	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
)

// GPUSpec describes a kind of card and its sharing rules.
type GPUSpec struct {
	Model      string  `json:"model"`       // as in gres.conf's Type, e.g. "titanxp"
	MemMiB     float64 `json:"mem_mib"`     // device memory, MiB; 0 = unknown
	PCIeMBps   float64 `json:"pcie_mbps"`   // throughput of the link, both directions together, MB/s; 0 = unknown
	SameUser   bool    `json:"same_user"`   // all sharers must belong to one user (MPS before Volta)
	MaxClients int     `json:"max_clients"` // most jobs at a time; 0 = only the guard's limit
	// Sharing is how sharers' kernels meet: "mps", or "time-slice" where the card takes turns; "" = not known.
	Sharing string `json:"sharing,omitempty"`
	// MemLimits: MPS holds a job to the device memory that it was given (Volta and later).
	MemLimits bool `json:"memory_limits,omitempty"`
}

// TitanXp is the thesis's card: Pascal, 12 GB, PCIe 3.0 x16 (32 GB/s by the thesis, both directions). Before Volta, MPS
// serves one user and 16 clients.
var TitanXp = GPUSpec{Model: "titanxp", MemMiB: 12196, PCIeMBps: 32000, SameUser: true, MaxClients: 16}

// MemPart is an amount of device memory, MiB, as a part of the card's; all of it where the card's isn't known.
func (s *GPUSpec) MemPart(mib float64) float64 {
	if !(s.MemMiB > 0) {
		return 1
	}
	return mib / s.MemMiB
}

// GPUSet is a set of GPUs that jobs may use.
type GPUSet = schedule.GPUSet

// NewGPUSet returns the set of the given GPUs.
func NewGPUSet(gpus ...int) *GPUSet { return schedule.NewGPUSet(gpus...) }

// Job is a pending job as a decision sees it.
type Job struct {
	ID      string
	User    string
	Profile *Profile // nil = unknown application: it first runs alone
	// ByModel holds the profile on each model of GPU that the job may run on, where they differ; see On. Profile is then
	// that of the model on which it is fastest.
	ByModel *ProfilesByModel
	SubmitS float64 // s on State.NowS's clock
	// LimitS is the job's time limit, s: its run is ended then. An unknown job is assumed to run so long. 0 = none.
	LimitS float64
	// LimitFixed: the limit can't be raised; see Guard.ExtendLimit.
	LimitFixed bool
	// DeadlineS is the latest end that the job's owner allows (Slurm's --deadline), s on State.NowS's clock; 0 = none.
	DeadlineS float64
	// Priority is Slurm's, with what goes before it: of the pending jobs the highest goes first, of equals the one
	// submitted first.
	Priority float64
	// PlainEndS is when plain Slurm would have ended the job, s on State.NowS's clock; of a job of unknown length, at its
	// limit. 0 = nothing is promised. See Plain.
	PlainEndS float64
	// PlainSlot is where and when plain Slurm would have started it; nil = not known.
	PlainSlot *schedule.Slot
	// EarlyS is how much sooner than PlainEndS, which rests on mean run times, plain Slurm can be expected to end it, s.
	// It brings the due forward; see schedule.SlurmAlone.EarlyS.
	EarlyS float64
	// MaxSlowdown is the job's contract, run time together ÷ alone; 0 = the guard's.
	MaxSlowdown float64
	// Grace is its own in place of Guard.Grace, 0 = the guard's.
	Grace float64
	// NoShare: the job must have the GPU alone. FirstRun: because this run is to show what its application needs.
	NoShare, FirstRun bool
	// Array is the job array that the job belongs to, "" = none. ArrayOnly: it may share with tasks of that array only.
	Array     string
	ArrayOnly bool
	Rank      string // jobs of different ranks don't share: one might preempt the other
	// DelayedS is how long the bridge alone has kept the job waiting while a GPU that it may use was idle, s.
	DelayedS float64
	// CPUs and HostMemMiB are what the job takes of its node; 0 = not counted.
	CPUs       int
	HostMemMiB float64
	// CPUGrain: the members of a group divide the CPUs, which the job has by default, in units of so many; 0 = each takes
	// all of its own. HostMemDivides: they divide the memory, too.
	CPUGrain       int
	HostMemDivides bool
	GPUs           *GPUSet // that the job may run on
	// Foreign: the job is Slurm's alone. It is in the queue and has its turn, but no decision starts it.
	Foreign bool
	// PerNode whole GPUs are what the job takes of each of Nodes nodes; 0 = 1.
	PerNode, Nodes int
	turn
}

// ProfilesByModel are an application's profiles by GPU model, nil where none is known.
type ProfilesByModel map[string]*Profile

// turn is when a job's turn comes; Guard.Begin sets it. Times are s from the State's NowS.
type turn struct {
	takesS          float64 // how long it runs alone, as expected; +Inf = not known
	startS, latestS float64 // when the job starts if all go on plainly, and when it must
	byS             float64 // when it must start to keep its due; latestS is sooner, to leave some of the time
	on              int     // 1 + the GPU where it starts if all go on plainly; 0 = on several, on none, or not known
	loses           bool    // it would start too late if all foreign jobs went first
}

// Host is the job's part of its node when members jobs are on its GPU: CPUs and memory, MiB.
func (j *Job) Host(members int) (cpus int, memMiB float64) {
	cpus, memMiB = j.CPUs, j.HostMemMiB
	if n := j.CPUGrain * members; n > 0 {
		cpus = (cpus + n - 1) / n * j.CPUGrain
	}
	if j.HostMemDivides {
		memMiB /= float64(members)
	}
	return cpus, memMiB
}

// MayUse reports whether the job may run on State.GPUs[g].
func (j *Job) MayUse(g int) bool { return j.GPUs.Has(g) }

// Request is the job's request for whole GPUs.
func (j *Job) Request() schedule.Request {
	return schedule.Request{GPUs: j.GPUs, PerNode: j.PerNode, Nodes: j.Nodes}
}

// goOn starts a job in a list schedule as things go on plainly: where plain Slurm has it, if it keeps its due there, so
// that each job behind it finds at least the GPUs that it finds on plain Slurm.
func (j *Job) goOn(f *schedule.List) (atS float64, on []int) {
	if j.PlainSlot == nil {
		return f.Run(j.Request(), j.takesS)
	}
	return f.RunLike(j.PlainSlot.On, j.byS, j.Request(), j.takesS)
}

// WholeGPUs is how many GPUs the job takes, unshared if they are several.
func (j *Job) WholeGPUs() int { return max(1, j.PerNode) * max(1, j.Nodes) }

// ForSchedule returns the job as plain Slurm's schedule sees it.
func (j *Job) ForSchedule() schedule.Entry {
	out := schedule.Entry{
		ID: j.ID, Priority: j.Priority, SubmitS: j.SubmitS, TakesS: j.expectedS(), Request: j.Request(),
	}
	if p := j.Profile; p != nil && p.DurationSD > 0 {
		limitS := j.LimitS
		out.Spread = p.sigma()
		out.LengthS = func(doneS, part float64) (meanS, quantileS float64) {
			quantileS = p.quantile(part, doneS)
			if limitS > 0 {
				quantileS = min(quantileS, max(limitS, doneS))
			}
			return doneS + p.Left(doneS, limitS), quantileS
		}
	}
	return out
}

// On returns the job's profile on a GPU, nil = none is known.
func (j *Job) On(gpu *GPU) *Profile {
	if j.ByModel == nil {
		return j.Profile
	}
	return (*j.ByModel)[gpu.Model]
}

// Running is a job that holds a share of a GPU.
type Running struct {
	Job
	// DoneS is the solo work done so far, s: elapsed time ÷ slowdown, as predicted; see Profile.Believed.
	DoneS    float64
	ElapsedS float64 // since its start, s
	Shares   int     // that it holds, of 100 a GPU
	// MemLimitMiB is what MPS holds its device memory to, MiB; 0 = it isn't held.
	MemLimitMiB float64
	Whole       bool // it has a whole GPU; the bridge doesn't manage it
}

// GPU is one card and its running jobs.
type GPU struct {
	ID      string // UUID, or node:index where that is unknown
	Node    string
	Spec    GPUSpec
	Model   string // model, as Job.ByModel names it; "" = not known
	Running []Running
	// FreeCPUs and FreeHostMemMiB are what the node still has; negative = not counted.
	FreeCPUs       int
	FreeHostMemMiB float64
}

// FreeShares returns the shares that no job holds, of 100.
func (g *GPU) FreeShares() int {
	free := 100
	for i := range g.Running {
		if g.Running[i].Whole {
			return 0
		}
		free -= g.Running[i].Shares
	}
	return max(free, 0)
}

// expectedS returns the job's expected run time alone, s; +Inf = unknown.
func (j *Job) expectedS() float64 {
	s := math.Inf(1)
	if j.Profile != nil {
		s = j.Profile.Left(0, j.LimitS)
	}
	if j.LimitS > 0 {
		s = min(s, j.LimitS)
	}
	return s
}

// unknownWorkS is assumed of a job without profile and time limit, s.
const unknownWorkS = 3600

// WorkS is the job's solo work, s: by its profile, else its time limit, else an hour.
func (j *Job) WorkS() float64 {
	switch {
	case j.Profile != nil:
		return j.Profile.DurationS
	case j.LimitS > 0:
		return j.LimitS
	}
	return unknownWorkS
}

// LeftS is the solo work that a running job has left, s; of an unknown one, the time until its limit.
func (r *Running) LeftS() float64 {
	if r.Profile == nil {
		return max(0, r.LimitS-r.ElapsedS)
	}
	return r.Profile.Left(r.DoneS, r.LimitS)
}

// State is everything that a decision may depend on. The simulator and the bridge fill the same type.
type State struct {
	NowS float64
	GPUs []GPU
	// Pending holds the waiting jobs, highest priority first.
	Pending []Job
	// PlainFreeS is, by GPU, when it is free in the plain schedule once all jobs have ended, s on NowS's clock; nil =
	// unknown.
	PlainFreeS []float64
	// Sets are sets of GPUs that jobs may come with, such as the partitions'; see schedule.Cluster.
	Sets []*GPUSet
	// Several: jobs that take several GPUs come, too.
	Several bool
}

func (s *State) nodeOf(g int) string { return s.GPUs[g].Node }

func (s *State) request(i int) schedule.Request { return s.Pending[i].Request() }

// Combo is a set of window jobs: bit i stands for window job i, and 0 means to wait. It is the thesis's virtual slot
// and its action a ∈ {0 … 2^M−1}.
type Combo uint32

// Window sizes M. A decision scores up to 2^M combinations one by one.
const (
	DefaultWindow = 12
	MaxWindow     = 12
)

// Len returns the number of jobs in the combination.
func (c Combo) Len() int { return bits.OnesCount32(uint32(c)) }

// Has reports whether window job i is in the combination.
func (c Combo) Has(i int) bool { return c>>i&1 == 1 }

// Window is what one decision is about: a GPU and the pending jobs of highest priority that may use it.
type Window struct {
	State *State
	GPU   int   // index in State.GPUs
	Jobs  []int // indexes in State.Pending, highest priority first; at most MaxWindow

	guard *Guard
	jobs  []Job // as they are on this GPU, where that differs
}

// Keeps reports whether the promise to all other jobs is kept if c joins now. A policy also scores combinations that
// break it; one that examines only a few uses Keeps to choose them.
func (w *Window) Keeps(c Combo) bool { return w.guard == nil || w.guard.Keeps(w, c) }

// NewWindow returns the window of the first m pending jobs that may use GPU g and that a decision may start. A job that
// has its turn on the GPU, which is idle, takes the last place if it is behind these: they have theirs elsewhere. It
// reuses dst.
func NewWindow(dst []int, s *State, g, m int) Window {
	return NewWindowOf(dst, s, g, m, func(*Job) bool { return true })
}

// NewWindowOf is NewWindow of those jobs alone that would start on the GPU.
func NewWindowOf(dst []int, s *State, g, m int, starts func(*Job) bool) Window {
	w := Window{State: s, GPU: g, Jobs: dst[:0]}
	m = min(m, MaxWindow)
	models := false                        // the jobs differ by model of GPU
	missing := len(s.GPUs[g].Running) == 0 // the job that has its turn there
	for i := 0; i < len(s.Pending) && (missing || len(w.Jobs) < m); i++ {
		j := &s.Pending[i]
		full := len(w.Jobs) == m
		if full && !j.hasTurnOn(g) { // first: such a search goes through the whole queue
			continue
		}
		if j.Foreign || !j.MayUse(g) || !starts(j) {
			continue
		}
		if full {
			w.Jobs = w.Jobs[:m-1]
		}
		w.Jobs = append(w.Jobs, i)
		models = models || j.ByModel != nil
		missing = missing && !j.hasTurnOn(g)
	}
	for _, i := range w.Jobs {
		if !models {
			break
		}
		j := s.Pending[i]
		j.Profile = j.On(&s.GPUs[g])
		j.takesS = j.expectedS()
		w.jobs = append(w.jobs, j)
	}
	return w
}

// hasTurnOn reports whether the job would start on GPU g now if all went on plainly.
func (j *Job) hasTurnOn(g int) bool { return j.on == g+1 && j.startS <= rounding }

// Job returns window job i, with its profile on the window's GPU.
func (w *Window) Job(i int) *Job {
	if w.jobs != nil {
		return &w.jobs[i]
	}
	return &w.State.Pending[w.Jobs[i]]
}

// Card returns the window's GPU.
func (w *Window) Card() *GPU { return &w.State.GPUs[w.GPU] }

// Policy scores combinations of jobs for a GPU.
//
// A Policy is not safe for concurrent use. Score may keep scratch between calls but nothing that changes a later
// result: the same Window always gets the same scores.
type Policy interface {
	// Name is the policy's name in configurations and tables, e.g. "dqn".
	Name() string
	// Score writes each combination's value into dst; len(dst) == len(combos). The highest value above −Inf with which the
	// promise is kept is taken. combos holds only what Guard.Check allows, and combo 0 (wait) may be missing. A NaN is
	// never taken; see Decision.Broken.
	Score(dst []float64, w *Window, combos []Combo)
}
