package slurmbridge

import (
	"slices"
	"time"
)

// Place is where a job stands that waits for a decision.
type Place struct {
	At time.Time `json:"at"`
	// Gate that it waits behind; "" in shadow, where there is none.
	Gate string `json:"gate,omitempty"`
	// LeaseLeftS is after how long the gate opens by itself if the bridge is gone, s.
	LeaseLeftS float64 `json:"lease_left_s"`
	// Place counts from 1 among the Of jobs that wait for a decision, highest
	// priority first; 0 = it isn't one of them, because of Holds.
	Place int `json:"place"`
	Of    int `json:"of"`
	// Window is how many of them a decision looks at, of those that may use its GPU.
	Window int `json:"window"`
	// Holds says what the job waits for besides the bridge, "" = nothing.
	Holds string `json:"holds,omitempty"`
}

// Place tells where a pending job stands, as of the last look; nil: it doesn't wait
// for the bridge.
func (st *Status) Place(ref string) *Place {
	if st.Snap == nil {
		return nil
	}
	f := &Facts{Snap: st.Snap, Ungated: st.Mode == Shadow}
	holds := func(j *Job) string {
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
	var queue []*Job
	var job *Job
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		if j.State != Pending || j.Asked.Kind != AskShares || sent[j.Ref] || !f.Ungated && !f.behindGate(j) {
			continue
		}
		if j.Ref == ref {
			job = j
		}
		if holds(j) == "" {
			queue = append(queue, j)
		}
	}
	if job == nil {
		return nil
	}
	slices.SortFunc(queue, before)
	return &Place{
		At: st.At, Gate: st.Gate, LeaseLeftS: st.Lease.Seconds(), Window: st.Window, Holds: holds(job),
		Place: slices.Index(queue, job) + 1, Of: len(queue),
	}
}

// holds says what keeps a waiting job besides the bridge, "" = nothing.
func (f *Facts) holds(j *Job) string {
	switch {
	case !f.gated(j):
		return "its own dependency " + j.Dependency.without(f.Snap.Gates)
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
