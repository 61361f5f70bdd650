package soak

import (
	"fmt"
	"math"
)

// fate is what became of one job, and what would have become of it on plain Slurm. Times
// are seconds on one clock; NaN = never.
type fate struct {
	Key      string // Slurm's number, where it has one
	What     string // for people
	SoloS    float64
	LimitS   float64 // as its owner last set it
	Contract float64 // the slowdown it allows; 0 = any
	Deadline float64 // 0 = none
	OwnWay   bool    // its owner took it out of the bridge's hands
	Fails    bool    // it ends with an error in any company
	Kept     bool    // its owner neither cancelled nor requeued it

	State      string  // Slurm's; "" = Slurm doesn't know it any more and never ended it
	Exit       string  // CODE:SIGNAL
	Arrival    float64 // when it came and could start
	Start, End float64
	Restarts   int
	Company    []string // jobs that were seen on its GPU while it ran
	// Fault is what was done to the machine under it while it ran and would have hurt it
	// on plain Slurm as well, "" = nothing.
	Fault string
	// Hits is what else was done to the machine while it ran.
	Hits     []string
	PlainEnd float64
}

// rules are what a campaign's harms are measured by.
type rules struct {
	// PauseS is what a job's start and end take besides its solo time.
	PauseS float64
	// MarginS is how far Slurm's own times are off: whole seconds, and its looks at limits
	// and deadlines.
	MarginS float64
}

// Harms, as build/soak.json names them. failed is not bounded, but is a job's life all the same.
const (
	harmTimeout  = "timeout"
	harmOOM      = "oom"
	harmDeadline = "deadline"
	harmLate     = "late"
	harmContract = "contract"
	harmLost     = "lost"
	harmFailed   = "failed"
)

// harm is one way in which a job is worse off than on plain Slurm.
type harm struct {
	Kind string `json:"kind"`
	Job  string `json:"job"` // Slurm's number
	What string `json:"what"`
	Why  string `json:"why"`
	// ByS is by how much, s, where that is a time.
	ByS     float64  `json:"by_s,omitempty"`
	Start   float64  `json:"start,omitempty"` // Unix seconds
	Company []string `json:"company,omitempty"`
	Hits    []string `json:"hits,omitempty"`
}

// startOf is a job's start, 0 = never: JSON has no NaN.
func startOf(f *fate) float64 {
	if math.IsNaN(f.Start) {
		return 0
	}
	return f.Start
}

// lateAfter is the fraction of its solo time by which a job may end after its plain end.
const lateAfter = 0.1

// exitOOM is the simulated application's exit status where it finds no memory.
const exitOOM = "2:0"

// judged reports whether a job can be late or slow.
func (f *fate) judged() bool {
	return f.State == "COMPLETED" && !f.OwnWay && f.Kept && f.Restarts == 0 && f.Fault == "" && !f.Fails
}

// judge returns what harm came to a job.
func judge(f *fate, r rules) []harm {
	var out []harm
	add := func(kind string, by float64, format string, args ...any) {
		out = append(out, harm{Kind: kind, Job: f.Key, What: f.What, Start: startOf(f), Company: f.Company, Hits: f.Hits, ByS: math.Round(10*by) / 10, Why: fmt.Sprintf(format, args...)})
	}
	ran := f.End - f.Start
	switch f.State {
	case "COMPLETED":
	case "TIMEOUT":
		if f.SoloS+r.PauseS <= f.LimitS && f.Fault == "" {
			add(harmTimeout, 0, "ended after %.0f s at its limit of %.0f s; it takes %.0f s alone", ran, f.LimitS, f.SoloS)
		}
	case "DEADLINE":
		// Slurm cancels a job that waits once its limit doesn't fit before its deadline.
		latest, plainStart := f.Deadline-f.LimitS, f.PlainEnd-f.SoloS-r.PauseS
		if plainStart+r.MarginS <= latest && f.Fault == "" {
			add(harmDeadline, 0, "would have started %.0f s before it had to for its deadline", latest-plainStart)
		}
	case "OUT_OF_MEMORY", "FAILED":
		switch {
		case f.Fails:
		case f.Exit == exitOOM:
			add(harmOOM, 0, "found no GPU memory after %.0f s", ran)
		case f.Fault == "":
			add(harmFailed, 0, "ended with %s after %.0f s", f.Exit, ran)
		}
	case "CANCELLED", "PREEMPTED", "REVOKED":
		if f.Kept {
			add(harmLost, 0, "was %s, and not by its owner", f.State)
		}
	case "NODE_FAIL", "BOOT_FAIL":
		if f.Fault == "" {
			add(harmLost, 0, "ended as %s", f.State)
		}
	default:
		if f.Kept {
			add(harmLost, 0, "never ended: %s", f.State)
		}
	}
	if !f.judged() {
		return out
	}
	if by := f.End - f.PlainEnd - lateAfter*f.SoloS; by > 0 {
		add(harmLate, f.End-f.PlainEnd, "ended %.0f s after its plain end; it takes %.0f s alone", f.End-f.PlainEnd, f.SoloS)
	}
	if most := f.Contract*f.SoloS + r.PauseS + r.MarginS; f.Contract > 0 && ran > most {
		add(harmContract, ran-most, "ran %.0f s, %.2f times its %.0f s alone; its contract is %g", ran, (ran-r.PauseS)/f.SoloS, f.SoloS, f.Contract)
	}
	return out
}

// sight is a waiting job at one look.
type sight struct {
	At float64
	// Gated: only the bridge's gate keeps it, or room.
	Gated bool
	// Idle: a GPU that it may use is idle and in service.
	Idle bool
	// DeadS is how long the bridge has been dead, s; 0 = it lives.
	DeadS float64
}

// heldS is how much too long a job was kept at the gate, s: after the bridge was dead for a
// lease, and next to an idle GPU for longer than maxDelayS in all.
func heldS(seen []sight, leaseS, maxDelayS float64) float64 {
	most, idle := 0.0, 0.0
	for i, s := range seen {
		if !s.Gated {
			continue
		}
		most = max(most, s.DeadS-leaseS)
		if s.Idle && i > 0 && seen[i-1].Gated && seen[i-1].Idle {
			idle += s.At - seen[i-1].At
		}
	}
	return max(most, idle-maxDelayS, 0)
}
