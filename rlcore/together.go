package rlcore

import "cmp"

// Together reports whether the given jobs may compute on one card of the given kind at the
// same time, whenever each of them starts and whichever of its other sharers are gone: the
// most that each ever holds of the card's memory counts, where Check follows their runs.
// nowS is State.NowS. The node's cores and memory aren't looked at.
func (g *Guard) Together(spec *GPUSpec, jobs []Running, nowS float64) Refusal {
	if len(jobs) < 2 {
		return Allowed
	}
	if len(jobs) > g.Members(spec) {
		return RefusedClients
	}
	if g.meeting == nil {
		g.meeting = &Window{State: &State{GPUs: make([]GPU, 1)}}
	}
	w := g.meeting
	w.State.NowS = nowS
	w.State.GPUs[0] = GPU{Spec: *spec, Running: jobs, FreeCPUs: -1, FreeHostMemMiB: -1}
	for i := range jobs {
		if jobs[i].Whole {
			return RefusedWhole
		}
	}
	if why := g.admit(w, 0, len(jobs)); why != Allowed {
		return why
	}
	if f, ok := g.Predictor.(Forbidder); ok && f.Forbidden(spec, g.scratch.members) {
		return RefusedForbidden
	}
	if g.peaks() > spec.MemMiB*(1-cmp.Or(g.MemMargin, defaultMemMargin)) {
		return RefusedMemory
	}
	g.predict(spec)
	if !g.keepsContracts(w, 0) {
		return RefusedContract
	}
	if !g.Bare && !g.keepsLimits(w, 0) {
		return RefusedLimit
	}
	return Allowed
}

// peaks is the most memory that the members may ever hold at the same time, MiB.
func (g *Guard) peaks() float64 {
	sum := 0.0
	for i := range g.scratch.tracks {
		tr := &g.scratch.tracks[i]
		sum += tr.p.peakMemMiB() + tr.spare
	}
	return sum
}
