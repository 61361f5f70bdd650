package models

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

const (
	// sliceGPUs is how many GPUs a slice has at most. Values don't depend on the
	// number of GPUs, so that what is learned on four holds on hundreds.
	sliceGPUs = 4
	// mostRuns bounds the runs of a mix, the latest ones: more add nothing.
	mostRuns = 4000
	// heldPart is the part of the runs, the last ones, that training doesn't see.
	heldPart = 0.25
)

// drawn is a run that a mix may be drawn from.
type drawn struct {
	*history.Run
	card  rlcore.GPUSpec
	soloS float64 // how long it would have taken alone, s
}

// Draw makes a mix of the runs that ended in [from, to) and have a record; card is what is known of
// a run's GPU. It leaves the runs as they are.
func Draw(from, to time.Time, runs []history.Run, card func(*history.Run) rlcore.GPUSpec, past []history.Outcome, rules Rules) *Mix {
	m := &Mix{From: from.UTC(), To: to.UTC(), Rules: rules, LeftOut: map[string]int{}}
	var kept []*drawn
	for i := range runs {
		if runs[i].ID == 0 {
			continue
		}
		r := &drawn{Run: &runs[i], card: card(&runs[i])}
		r.soloS, _ = r.Solo()
		if why := r.leftOut(); why != "" {
			m.LeftOut[why]++
			continue
		}
		kept = append(kept, r)
	}
	slices.SortStableFunc(kept, func(a, b *drawn) int {
		return cmp.Or(a.arrive().Compare(b.arrive()), a.Start.Compare(b.Start), cmp.Compare(a.Ref, b.Ref))
	})
	if n := len(kept) - mostRuns; n > 0 {
		m.LeftOut[fmt.Sprintf("the latest %d are enough", mostRuns)] = n
		kept = kept[n:]
	}
	m.Split = m.To
	if n := int((1 - heldPart) * float64(len(kept))); n < len(kept) {
		m.Split = kept[n].arrive().UTC()
	}
	m.slice(kept)
	for i := range past {
		if o := &past[i]; o.End.Before(to) && (o.Lesson != nil || o.Broken || len(o.Blamed) > 0 || o.Cleared) {
			m.Outcomes = append(m.Outcomes, teaching(o))
		}
	}
	return m
}

// teaching is what of an outcome teaches anything.
func teaching(o *history.Outcome) history.Outcome {
	return history.Outcome{
		Ref: o.Ref, User: o.User, App: o.App, End: o.End.UTC(), WithApps: o.WithApps, WithOwners: o.WithOwners, Contract: o.Contract, Broken: o.Broken,
		Lesson: o.Lesson, Suspect: o.Suspect, Blamed: o.Blamed, Cleared: o.Cleared,
	}
}

func (r *drawn) leftOut() string {
	switch {
	case len(r.GPUs) > 1:
		return "more than one GPU"
	case len(r.GPUs) == 0:
		return "its GPU is not known"
	case !r.End.After(r.Start):
		return "it ran for no time"
	case !(r.card.MemMiB > 0):
		return "its card is not known"
	case r.Profile != nil && r.Profile.Validate() != nil:
		return "its profile can't be"
	case r.Profile != nil && r.Profile.Peak().MemMiB > r.card.MemMiB:
		return "more memory than its card has"
	case r.soloS <= 0:
		return "it failed while sharing: how long it takes alone is not known"
	}
	return ""
}

// arrive is when the job arrived, its start where no poll showed it waiting.
func (r *drawn) arrive() time.Time {
	if r.Ready.IsZero() || r.Ready.After(r.Start) {
		return r.Start
	}
	return r.Ready
}

// slice deals the runs out to slices: GPUs of one card, in the order of their names.
func (m *Mix) slice(kept []*drawn) {
	type gpu struct {
		card rlcore.GPUSpec
		node string
		at   int
	}
	id := func(r *drawn) gpu { return gpu{r.card, r.Node, r.GPUs[0]} }
	jobs := map[gpu]bool{}
	var gpus []gpu
	for _, r := range kept {
		if g := id(r); !jobs[g] {
			jobs[g] = true
			gpus = append(gpus, g)
		}
	}
	slices.SortFunc(gpus, func(a, b gpu) int {
		return cmp.Or(cmp.Compare(a.card.Model, b.card.Model), cmp.Compare(a.card.MemMiB, b.card.MemMiB),
			cmp.Compare(fmt.Sprint(a.card), fmt.Sprint(b.card)), cmp.Compare(a.node, b.node), cmp.Compare(a.at, b.at))
	})
	place := map[gpu]int{}
	for _, g := range gpus {
		if n := len(m.Slices); n == 0 || m.Slices[n-1].GPUs == sliceGPUs || m.Slices[n-1].Card != g.card {
			m.Slices = append(m.Slices, Slice{Card: g.card})
		}
		place[g] = len(m.Slices) - 1
		m.Slices[len(m.Slices)-1].GPUs++
	}
	for _, r := range kept {
		j := Job{Job: r.Job(), SoloS: r.soloS}
		j.Profile, j.SubmitS = r.Profile, r.arrive().Sub(m.From).Seconds()
		if r.Ready.IsZero() {
			m.Guessed++
		}
		s := &m.Slices[place[id(r)]]
		if r.arrive().Before(m.Split) {
			s.Split++
		}
		s.Jobs = append(s.Jobs, j)
	}
}
