// Package gpuprof records what jobs use of their GPUs and makes profiles of it.
package gpuprof

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// GPU is a card as a record names it.
type GPU struct {
	Index  int     `json:"index"` // gres.conf's order on its node
	UUID   string  `json:"uuid"`
	Model  string  `json:"model"`
	MemMiB float64 `json:"mem_mib"`
	// PCIeMBps is what the link carries, both directions together; 0 = unknown.
	PCIeMBps float64 `json:"pcie_mbps,omitempty"`
	// NoMemLimits: the driver is too old to hold MPS clients to a part of the memory, which the card could.
	NoMemLimits bool `json:"no_mem_limits,omitempty"`
	// Parent is the UUID of the card that it is a MIG instance of: UUID, model, memory and the like are the instance's. ""
	// = it is a whole card. SMs are an instance's, 0 = unknown.
	Parent string `json:"parent,omitempty"`
	SMs    int    `json:"sms,omitempty"`
}

// ModelOf is the model of all the GPUs, "" = they differ, or there is none. What runs on one takes as long on any other
// of that name.
func ModelOf(gpus []GPU) string {
	if len(gpus) == 0 || slices.ContainsFunc(gpus, func(g GPU) bool { return g.Model != gpus[0].Model }) {
		return ""
	}
	return gpus[0].Model
}

// Model is the model of all of the job's GPUs, as ModelOf says it.
func (r *Record) Model() string { return ModelOf(r.GPUs) }

// Power is what the job's GPUs drew, all of them together: the cards' power, idle draw and neighbours included.
type Power struct {
	MeanW   float64 `json:"mean_w"`
	PeakW   float64 `json:"peak_w"`
	EnergyJ float64 `json:"energy_j"` // over the time with readings
}

// Host is what a job used of its node, by its control group.
type Host struct {
	Cores  float64 `json:"cores"`             // on average
	MemMiB float64 `json:"mem_mib,omitempty"` // at most, the kernel's cache for its files included; 0 = not known
}

// Neighbour is another job on the same GPU, and when it was there.
type Neighbour struct {
	JobID int64     `json:"job_id"`
	User  string    `json:"user,omitempty"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"` // the record's end if it was still there
}

// Record is what one job did with its GPUs on one node.
type Record struct {
	JobID int64 `json:"job_id"`
	// ArrayJobID is 0 for a job that is not part of an array, and where the node doesn't
	// know: Slurm 22.05 to 24.11 don't name it to a prolog, and the controller fills it in.
	ArrayJobID  int64     `json:"array_job_id,omitempty"`
	ArrayTaskID int64     `json:"array_task_id,omitempty"`
	Restart     int       `json:"restart"`
	Node        string    `json:"node"`
	UID         uint32    `json:"uid"`
	User        string    `json:"user"`
	Comment     string    `json:"comment,omitempty"` // hostile text, at most 1 KiB
	Start       time.Time `json:"start"`
	End         time.Time `json:"end"`
	GPUs        []GPU     `json:"gpus"`
	// Shared: the job held a share (gres/mps or gres/shard), not a whole GPU.
	Shared bool `json:"shared"`
	// MPSFault is when the MPS server that the job computed through was found to have faulted or died, by one of its
	// clients or from outside: the job is its victim, or its cause. Zero = it didn't.
	MPSFault time.Time `json:"mps_fault,omitzero"`
	// MPSFaultBy are the jobs, perhaps this one among them, with a process that caused the fault; empty = not known.
	MPSFaultBy []int64 `json:"mps_fault_by,omitempty"`
	// WithoutMPS: a process of the job computed next to other jobs without MPS, so the GPU took turns:
	// the run says nothing of sharing.
	WithoutMPS bool `json:"without_mps,omitempty"`
	// NoEpilog: no epilog ran, so the job's end is unknown; End is when its GPUs were last read.
	NoEpilog bool `json:"no_epilog,omitempty"`
	// ClockBehindS is by how much the node's clock was behind the controller's when the record came, s; negative = ahead.
	// The controller fills it in; all times of the record are the node's.
	ClockBehindS float64 `json:"clock_behind_s,omitempty"`
	// What ran, as the controller knows it from the job's script. A node leaves these empty.
	App    string `json:"app,omitempty"`    // its program
	Params string `json:"params,omitempty"` // its sizes, "name=value; …", at most 4 KiB
	// Series holds one point a PeriodS seconds from Start on, at most MaxPoints. It is over all of GPUs: GPU and core use
	// are their mean, memory and traffic their sum.
	PeriodS float64      `json:"period_s"`
	Series  []rlcore.Use `json:"series"`
	Mean    rlcore.Use   `json:"mean"`
	Peak    rlcore.Use   `json:"peak"`
	Power   *Power       `json:"power,omitempty"`
	// Processes is the largest number of the job's processes with a context on one GPU, ProcessMiB the most device memory
	// of one of them; 0 = unknown.
	Processes  int     `json:"processes,omitempty"`
	ProcessMiB float64 `json:"process_mib,omitempty"`
	// MemLimitMiB is the device memory that MPS held the job to, MiB; 0 = it wasn't held.
	MemLimitMiB float64     `json:"mem_limit_mib,omitempty"`
	Host        *Host       `json:"host,omitempty"` // nil = not known
	Neighbours  []Neighbour `json:"neighbours,omitempty"`
	// Mixed lists the figures that are the whole GPU's though the job had neighbours:
	// nothing distinguishes the sharers. Before Volta MPS shows one process for all, core use is theirs only while the
	// driver's samples of processes add up, and PCIe and power are never given by process. Empty for a solo run.
	Mixed []string `json:"mixed,omitempty"`
	// Divided lists the figures that NVML gives of a MIG instance's whole card only. The instance was given a part by its
	// SMs among the SMs of all instances, so that the figures contain what other instances did.
	Divided []string `json:"divided,omitempty"`
	// Successful samples, and failed ones.
	Samples int `json:"samples"`
	Failed  int `json:"failed"`
	// MissedS is for how long there is no sample: the agent was away, or the GPU didn't answer, s.
	MissedS float64 `json:"missed_s,omitempty"`
	// Unknown lists the figures that were not read in a tenth of the sampled time or more: there a 0 is no value.
	Unknown []string `json:"unknown,omitempty"`
	// Cut: the agent that closed the record has never read the job's GPUs.
	Cut bool `json:"cut,omitempty"`
}

// maxProcesses bounds a job's processes on a GPU.
const maxProcesses = 4096

// MaxPoints bounds a record's series, however long the job ran.
const MaxPoints = 512

// ErrBadRecord marks a record that can't be true.
var ErrBadRecord = errors.New("bad record")

// Ref is how scontrol names the job.
func (r *Record) Ref() string {
	if r.ArrayJobID != 0 {
		return fmt.Sprintf("%d_%d", r.ArrayJobID, r.ArrayTaskID)
	}
	return strconv.FormatInt(r.JobID, 10)
}

// DurationS is how long the job ran, s.
func (r *Record) DurationS() float64 { return r.End.Sub(r.Start).Seconds() }

// ControllerTime converts a time of the record to the controller's clock.
func (r *Record) ControllerTime(t time.Time) time.Time {
	return t.Add(time.Duration(r.ClockBehindS * float64(time.Second)))
}

// Solo reports whether no other job was on the job's GPUs.
func (r *Record) Solo() bool { return len(r.Neighbours) == 0 }

// Validate returns an error that wraps ErrBadRecord where the record can't be true.
func (r *Record) Validate() error {
	var bad error // the first that can't be true
	need := func(ok bool, what string, v any) {
		if !ok && bad == nil {
			bad = fmt.Errorf("%w: %s is %v", ErrBadRecord, what, v)
		}
	}
	need(r.JobID > 0, "job_id", r.JobID)
	need(r.Restart >= 0, "restart", r.Restart)
	need(r.Node != "" && len(r.Node) <= 255, "the length of node", len(r.Node))
	need(len(r.User) <= 255, "the length of user", len(r.User))
	need(len(r.Comment) <= 1024, "the length of comment", len(r.Comment))
	need(!r.End.Before(r.Start) && r.DurationS() <= 10*365*86400, "end", r.End)
	need(len(r.Series) <= MaxPoints, "the length of series", len(r.Series))
	need(len(r.Series) == 0 || r.PeriodS > 0 && r.PeriodS < 1e7, "period_s", r.PeriodS)
	need(len(r.GPUs) <= 64, "the number of GPUs", len(r.GPUs))
	need(max(len(r.Neighbours), len(r.MPSFaultBy)) <= 1024, "the number of neighbours", len(r.Neighbours))
	need(len(r.App) <= 255 && len(r.Params) <= 4096, "the length of app or params", max(len(r.App), len(r.Params)))
	need(math.Abs(r.ClockBehindS) < 1e10, "clock_behind_s", r.ClockBehindS)
	need(r.Processes >= 0 && r.Processes <= maxProcesses && finite(r.ProcessMiB), "processes or process_mib", r.Processes)
	need(finite(r.MissedS), "missed_s", r.MissedS)
	need(r.Host == nil || finite(r.Host.Cores, r.Host.MemMiB), "host", r.Host)
	most := max(len(r.Unknown), len(r.Mixed), len(r.Divided))
	need(most <= MaxFigures, "the number of figures", most)
	if bad != nil {
		return bad
	}
	for _, n := range slices.Concat(r.Unknown, r.Mixed, r.Divided) {
		need(isFigure(n), "a figure's name", fmt.Sprintf("%.32q", n))
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		need(max(len(g.Parent), len(g.UUID), len(g.Model)) <= 255 && min(g.Index, g.SMs) >= 0 &&
			finite(g.MemMiB, g.PCIeMBps),
			"a GPU", fmt.Sprintf("%.64q", g.UUID))
	}
	for f := range resources {
		for _, u := range append([]rlcore.Use{r.Mean, r.Peak}, r.Series...) {
			need(f.possible(*f.Resource(&u)), "figure "+f.Name, *f.Resource(&u))
		}
	}
	need(r.Power == nil || finite(r.Power.MeanW, r.Power.PeakW, r.Power.EnergyJ), "power", r.Power)
	return bad
}

// resources yields the figures that are part of a Use.
func resources(yield func(*Figure) bool) {
	for i := range Recorded {
		if Recorded[i].Resource != nil && !yield(&Recorded[i]) {
			return
		}
	}
}

// possible reports whether all values of the figure can be true.
func (f *Figure) possible(vs ...float64) bool {
	return finite(vs...) && (!f.fraction() || !slices.ContainsFunc(vs, func(v float64) bool { return v > 1 }))
}

// finite reports whether no value is negative, infinite or no number.
func finite(vs ...float64) bool {
	return !slices.ContainsFunc(vs, func(v float64) bool { return !(v >= 0) || math.IsInf(v, 0) })
}

// IdleBelow is the part of its time, or of its processors, below which a GPU does nothing.
const IdleBelow = 0.01

// Idle is a job that runs and has done nothing with its GPUs for a while.
type Idle struct {
	JobID int64   `json:"job_id"`
	IdleS float64 `json:"idle_s"` // up to now
}

// IdleReport is an agent's regular report on jobs of its node that don't use their GPUs as they should.
type IdleReport struct {
	Node string `json:"node"`
	Jobs []Idle `json:"jobs"`
	// WithoutMPS are the jobs that share a GPU and have a process on it that computes without MPS.
	WithoutMPS []int64 `json:"without_mps,omitempty"`
}

// Empty reports whether there is nothing to report.
func (r *IdleReport) Empty() bool { return len(r.Jobs) == 0 && len(r.WithoutMPS) == 0 }

// Validate returns an error that wraps ErrBadRecord where the report can't be true.
func (r *IdleReport) Validate() error {
	if r.Node == "" || len(r.Node) > 255 || max(len(r.Jobs), len(r.WithoutMPS)) > 4096 {
		return fmt.Errorf("%w: a report of %d jobs on %.32q", ErrBadRecord, len(r.Jobs)+len(r.WithoutMPS), r.Node)
	}
	for _, j := range r.Jobs {
		if j.JobID <= 0 || !(j.IdleS >= 0 && j.IdleS < 1e9) {
			return fmt.Errorf("%w: job %d idle for %v s", ErrBadRecord, j.JobID, j.IdleS)
		}
	}
	return nil
}
