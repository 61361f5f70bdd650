package plan

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// Bounds on an explanation: entries of one decision and in all.
const (
	bestOfDecision = 3
	mostConsidered = 9
	mostVetoes     = 9
)

// explain records what a decision considered of each job in its window.
func (r *planRun) explain(dec *rlcore.Decision) {
	if i, why := dec.SoleVeto(); why != rlcore.Allowed {
		if e := r.explanation(dec.Window.Job(i)); !slices.Contains(e.SoleVetoes, why) {
			e.SoleVetoes = append(e.SoleVetoes, why)
		}
	}
	r.ends = r.draft.guard.Expect(r.ends, &dec.Window, dec.Combo)
	for i := range dec.Window.Jobs {
		e := r.explanation(dec.Window.Job(i))
		if len(dec.Window.Jobs)+len(dec.Window.Card().Running) > 1 {
			r.plan.InCompany[e.Ref] = true
		}
		e.ExpectedEnd = tracker.Time(r.ends[i])
		if p := dec.Window.Job(i).Profile; p != nil && p.Asked {
			e.AskedMiB = p.HeldMiB
		} else if p != nil {
			e.Preallocates = p.Preallocating(dec.Window.Card().Spec.MemMiB)
		}
		if t := r.draft.guard.FreeInS(dec.Window.GPU); e.FreeInS < 0 && t < math.MaxFloat64 || t < e.FreeInS {
			e.FreeInS = t
		}
		r.considered(e, dec, i)
		r.vetoed(e, dec, i)
		switch ref := r.view.gpus[dec.Window.GPU]; {
		case dec.Combo.Has(i):
			e.Status = startsNow(ref)
		case !slices.ContainsFunc(e.Considered, func(c job.Considered) bool { return c.Taken }):
			e.Status = e.Waits()
		}
	}
}

// explanation returns the plan's explanation of a job, a new one if there is none.
func (r *planRun) explanation(j *rlcore.Job) *job.Explanation {
	e := r.plan.Explanations[j.ID]
	if e == nil {
		e = &job.Explanation{
			At: r.in.Snap.At, Ref: j.ID, App: r.in.Apps[j.ID].Key, Known: j.Profile != nil,
			LatestDelayS: max(0, r.draft.guard.DelayLimitS()-j.DelayedS), FreeInS: -1,
			PlainEnd: tracker.Time(j.PlainEndS), Ignored: r.in.Terms[j.ID].Ignored,
		}
		if why := r.queue.noModel[j.ID]; why != "" {
			e.Ignored = append(slices.Clip(e.Ignored), why)
		}
		r.plan.Explanations[j.ID] = e
	}
	return e
}

// considered records the best combinations with job i of the window.
func (r *planRun) considered(e *job.Explanation, dec *rlcore.Decision, i int) {
	w, ref := &dec.Window, r.view.gpus[dec.Window.GPU]
	best := make([]int, 0, len(dec.Combos))
	for k, c := range dec.Combos {
		if c.Has(i) && !math.IsInf(dec.Scores[k], 0) { // −Inf: never
			best = append(best, k)
		}
	}
	sort.SliceStable(best, func(a, b int) bool { return dec.Scores[best[a]] > dec.Scores[best[b]] })
	for _, k := range best[:min(bestOfDecision, len(best), mostConsidered-len(e.Considered))] {
		c := job.Considered{Node: ref.node.Name, GPU: ref.index, Value: dec.Scores[k], Taken: dec.Combos[k] == dec.Combo}
		var members []*rlcore.Profile
		for n := range w.Card().Running {
			members = append(members, w.Card().Running[n].Profile)
		}
		for m := range w.Jobs {
			if dec.Combos[k].Has(m) {
				c.Jobs = append(c.Jobs, w.Job(m).ID)
				members = append(members, w.Job(m).Profile)
			}
		}
		if predicted := predict(r.draft.guard.Predictor, &w.Card().Spec, members); predicted != nil {
			for _, p := range predicted[len(w.Card().Running):] {
				c.Slowdown = append(c.Slowdown, p.Slowdown)
			}
		}
		e.Considered = append(e.Considered, c)
	}
}

// vetoed records why the guard vetoed job i of the window alone, or else in pairs.
func (r *planRun) vetoed(e *job.Explanation, dec *rlcore.Decision, i int) {
	on := r.view.gpus[dec.Window.GPU]
	own := rlcore.Combo(1 << i)
	if reason := dec.Vetoes[own]; reason != rlcore.Allowed {
		addVeto(e, job.Veto{Node: on.node.Name, GPU: on.index, Reason: reason})
		return
	}
	for k := range dec.Window.Jobs {
		reason := dec.Vetoes[own|1<<k]
		if k != i && reason != rlcore.Allowed {
			with := []string{dec.Window.Job(k).ID}
			addVeto(e, job.Veto{With: with, Node: on.node.Name, GPU: on.index, Reason: reason})
		}
	}
}

func addVeto(e *job.Explanation, v job.Veto) {
	if len(e.Vetoes) < mostVetoes {
		e.Vetoes = append(e.Vetoes, v)
	}
}

func startsNow(on gpuRef) string {
	return fmt.Sprintf("starts now on %s gpu %d", on.node.Name, on.index)
}

// predict predicts the slowdowns of all members of a GPU; nil where a profile is unknown.
func predict(p rlcore.Predictor, spec *rlcore.GPUSpec, members []*rlcore.Profile) []rlcore.Prediction {
	if p == nil || slices.Contains(members, nil) {
		return nil
	}
	out := make([]rlcore.Prediction, len(members))
	if out[0].Slowdown = 1; len(members) > 1 {
		p.Predict(out, spec, members)
	}
	return out
}
