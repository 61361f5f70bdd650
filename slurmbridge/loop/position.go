package loop

import (
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Place is where a job stands that waits for a decision.
type QueuePosition struct {
	At time.Time `json:"at"`
	// Gate that it waits behind; "" in shadow, where there is none.
	Gate string `json:"gate,omitempty"`
	// LeaseLeftS is after how long the gate opens by itself if the bridge is gone, s.
	LeaseLeftS float64 `json:"lease_left_s"`
	// Place counts from 1 among the Of jobs that wait for a decision, highest
	// priority first; 0 = it isn't one of them, because of Holds.
	Position int `json:"place"`
	Of       int `json:"of"`
	// Window is how many of them a decision looks at, of those that may use its GPU.
	Window int `json:"window"`
	// Holds says what the job waits for besides the bridge, "" = nothing.
	Holds string `json:"holds,omitempty"`
}

// Place tells where a pending job stands, as of the last look; nil: it doesn't wait
// for the bridge.
func QueuePositionOf(st *job.Status, ref string) *QueuePosition {
	if st.Snap == nil {
		return nil
	}
	f := &PlanInput{Snap: st.Snap, Ungated: st.Mode == job.Shadow}
	holds := func(j *job.Job) string {
		if why := f.holds(j); why != "" || st.Plan == nil {
			return why
		}
		return st.Plan.Limited[j.Ref]
	}
	sent := map[string]bool{} // by the plan that followed the look, or before
	for i := range st.Groups {
		for _, ref := range st.Groups[i].Refs() {
			sent[ref] = true
		}
	}
	var queue []*job.Job
	var found *job.Job
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		if j.State != job.Pending || j.Request.Kind != job.Shares || sent[j.Ref] || !f.Ungated && !f.behindGate(j) {
			continue
		}
		if j.Ref == ref {
			found = j
		}
		if holds(j) == "" {
			queue = append(queue, j)
		}
	}
	if found == nil {
		return nil
	}
	slices.SortFunc(queue, before)
	return &QueuePosition{
		At: st.At, Gate: st.Gate, LeaseLeftS: st.Lease.Seconds(), Window: st.Window, Holds: holds(found),
		Position: slices.Index(queue, found) + 1, Of: len(queue),
	}
}

// holds says what keeps a waiting job besides the bridge, "" = nothing.
func (f *PlanInput) holds(j *job.Job) string {
	switch {
	case !f.gated(j):
		return "its own dependency " + j.Dependency.Without(f.Snap.Gates)
	case j.Priority == 0:
		return "it is held"
	case j.Reason == "BeginTime" || !j.Eligible.IsZero() && j.Eligible.After(f.Snap.At):
		return "its begin time"
	}
	if is, _ := limitReason(j.Reason); is && f.Ungated {
		return "Slurm's limit " + j.Reason
	}
	return ""
}
