// Package rlcore decides which pending jobs run together on one GPU.
//
// It knows neither Slurm nor NVML. The bridge and the simulator fill the same
// State, the same Guard says which combinations of jobs are allowed, and a
// Policy values those that are; see Decide.
package rlcore

import (
	"math"
	"math/bits"
)

// GPUSpec is what a card and its sharing rules allow.
type GPUSpec struct {
	Model      string  `json:"model"`       // as in gres.conf's Type, e.g. "titanxp"
	MemMiB     float64 `json:"mem_mib"`     // device memory, MiB
	PCIeMBps   float64 `json:"pcie_mbps"`   // what the link carries, both directions together, MB/s; 0 = unknown
	SameUser   bool    `json:"same_user"`   // all sharers must belong to one user (MPS before Volta)
	MaxClients int     `json:"max_clients"` // sharers at most; 0 = no limit but the guard's
}

// TitanXp is the thesis's card: Pascal, 12 GB, PCIe 3.0 x16 (the thesis counts
// 32 GB/s, both directions). Before Volta MPS serves one user and 16 clients.
var TitanXp = GPUSpec{Model: "titanxp", MemMiB: 12196, PCIeMBps: 32000, SameUser: true, MaxClients: 16}

// Job is a pending job as a decision sees it.
type Job struct {
	ID      string
	User    string
	Profile *Profile // nil = nothing known: it runs alone once, and is learned
	SubmitS float64  // s on State.NowS's clock
	// LimitS is the job's own time limit, s; it bounds what is assumed of an
	// unknown job. 0 = none.
	LimitS float64
	// MaxSlowdown is the job's contract (run time together ÷ alone); 0 = the
	// guard's default.
	MaxSlowdown float64
	// NoShare: the owner wants the GPU alone.
	NoShare bool
	// Array is the array that the job is a task of, "" = none. ArrayOnly: its owner
	// lets it share with tasks of the same array alone.
	Array     string
	ArrayOnly bool
	// PassedOver counts the decisions that started a job of lower priority
	// while this one could have started.
	PassedOver int
	// DelayedS is how long a GPU that the job could have had stood idle while
	// only the bridge kept the job waiting, s.
	DelayedS float64
	// CPUs and HostMemMiB are what the job takes of its node. 0 = not counted.
	CPUs       int
	HostMemMiB float64
	// GPUs names the GPUs the job may run on, by index in State.GPUs; nil = all.
	GPUs []int
}

// MayUse reports whether the job may run on State.GPUs[g].
func (j *Job) MayUse(g int) bool {
	if j.GPUs == nil {
		return true
	}
	for _, i := range j.GPUs {
		if i == g {
			return true
		}
	}
	return false
}

// Running is a job that holds a share of a GPU.
type Running struct {
	Job
	// DoneS is the solo work done so far, s: elapsed time divided by the
	// slowdown the job really had. It never exceeds Profile.DurationS.
	DoneS float64
	// ElapsedS is the time since it started, s.
	ElapsedS float64
	// Shares it holds, of 100 a GPU.
	Shares int
	// Whole: the job has the GPU to itself by right (not one of the bridge's).
	Whole bool
}

// GPU is one card and who is on it.
type GPU struct {
	ID      string // UUID, or node:index where the UUID isn't known
	Node    string
	Spec    GPUSpec
	Running []Running
	// FreeCPUs and FreeHostMemMiB are what the node still has; negative = not counted.
	FreeCPUs       int
	FreeHostMemMiB float64
}

// FreeShares returns the shares nobody holds, of 100.
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

// EmptyInS is how long the GPU's jobs are expected to run on if nobody slows them,
// s: by their profiles, by their time limits where there is none; +Inf where
// neither is known. 0 = it is empty.
func (g *GPU) EmptyInS() float64 {
	t := 0.0
	for i := range g.Running {
		r := &g.Running[i]
		left := r.expectedS() - r.ElapsedS
		if r.Profile != nil {
			left = r.Profile.DurationS - r.DoneS
		}
		t = max(t, left)
	}
	return t
}

// expectedS is how long the job runs alone, as far as anybody knows.
func (j *Job) expectedS() float64 {
	switch {
	case j.Profile != nil:
		return j.Profile.DurationS
	case j.LimitS > 0:
		return j.LimitS
	}
	return math.Inf(1)
}

// State is everything a decision may look at. The simulator and the bridge fill
// the same type.
type State struct {
	NowS float64
	GPUs []GPU
	// Pending holds the waiting jobs, highest priority first. A decision looks
	// at the first M that may use the GPU in question: the window.
	Pending []Job
}

// Combo is a set of jobs of the window: bit i set means window job i. 0 waits.
// It is the thesis's virtual slot and its action a ∈ {0 … 2^M−1}.
type Combo uint32

// MaxWindow is the largest window (M) a decision may have: 2^M − 1 combinations
// are valued one by one.
const MaxWindow = 12

// Len returns the number of jobs in the combination.
func (c Combo) Len() int { return bits.OnesCount32(uint32(c)) }

// Has reports whether window job i is in the combination.
func (c Combo) Has(i int) bool { return c>>i&1 == 1 }

// Window is what one decision looks at: one GPU and the pending jobs of highest
// priority that may use it.
type Window struct {
	State *State
	GPU   int   // index in State.GPUs
	Jobs  []int // indexes in State.Pending, highest priority first; at most MaxWindow
}

// NewWindow returns the first m pending jobs that may use GPU g, written into
// dst's storage where it is large enough.
func NewWindow(dst []int, s *State, g, m int) Window {
	dst = dst[:0]
	for i := range s.Pending {
		if len(dst) == min(m, MaxWindow) {
			break
		}
		if s.Pending[i].MayUse(g) {
			dst = append(dst, i)
		}
	}
	return Window{State: s, GPU: g, Jobs: dst}
}

// Job returns window job i.
func (w *Window) Job(i int) *Job { return &w.State.Pending[w.Jobs[i]] }

// Card returns the GPU the window is for.
func (w *Window) Card() *GPU { return &w.State.GPUs[w.GPU] }

// Policy values combinations of jobs for a GPU.
//
// A Policy is not safe for concurrent use; Score may keep scratch between calls
// but nothing that changes a later answer, so that the same Window always gets
// the same scores.
type Policy interface {
	// Name is the policy's name in configurations and tables, e.g. "dqn".
	Name() string
	// Score writes into dst the value of each combination of combos; the
	// highest finite one is taken. len(dst) == len(combos). combos holds only
	// what the guard allows; combo 0 (wait) is among them only where waiting is
	// allowed. A NaN counts as the worst value and is reported by Decide.
	Score(dst []float64, w *Window, combos []Combo)
}
