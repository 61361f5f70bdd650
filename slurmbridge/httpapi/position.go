package httpapi

import (
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
)

// PositionOf returns the place of a pending job in the queue, as of the last poll; nil: the job doesn't wait for the
// bridge.
func PositionOf(st *job.Status, ref string) *job.QueuePosition {
	if st.Snap == nil {
		return nil
	}
	in := &plan.Input{Snap: st.Snap, Shadow: st.Mode == job.Shadow}
	besides := func(j *job.Job) string {
		if why := in.WaitsBesides(j); why != "" || st.Plan == nil {
			return why
		}
		return st.Plan.Limited[j.Ref]
	}
	sent := map[string]bool{} // to a GPU, by the plan that followed the poll or before
	for i := range st.Groups {
		for _, ref := range st.Groups[i].Refs() {
			sent[ref] = true
		}
	}
	var queue []*job.Job
	var found *job.Job
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		if j.State != job.Pending || j.Request.Kind != job.Shares || sent[j.Ref] || !in.WaitsForBridge(j) {
			continue
		}
		if j.Ref == ref {
			found = j
		}
		if besides(j) == "" {
			queue = append(queue, j)
		}
	}
	if found == nil {
		return nil
	}
	slices.SortFunc(queue, plan.ByPriority)
	var start time.Time
	if st.Plan != nil {
		start = st.Plan.Starts[ref]
	}
	return &job.QueuePosition{
		ExpectedStart: start, At: st.At, Gate: st.Gate, LeaseLeftS: st.Lease.Seconds(), Window: st.Window, Holds: besides(found),
		Position: slices.Index(queue, found) + 1, Of: len(queue),
	}
}
