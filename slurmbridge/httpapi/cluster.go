package httpapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/chart"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

type gpuKey struct {
	node string
	gpu  int
}

// cluster is what is where, by GPU.
type cluster struct {
	order []gpuKey
	state map[gpuKey]*GPU
	spans map[gpuKey][]chart.Span
}

func (c *cluster) add(k gpuKey, ref, what string, from, to time.Time, s chart.Span) {
	s.Job, s.Detail, s.From, s.To = ref, what, from, to
	c.spans[k] = append(c.spans[k], s)
}

// layOut joins what was seen to run, what runs and what is planned.
func layOut(st *job.Status, past []history.Run, now time.Time) *cluster {
	c := &cluster{state: map[gpuKey]*GPU{}, spans: map[gpuKey][]chart.Span{}}
	rep := MakeReport(st)
	for i := range rep.GPUs {
		k := gpuKey{rep.GPUs[i].Node, rep.GPUs[i].GPU}
		c.order, c.state[k] = append(c.order, k), &rep.GPUs[i]
	}
	for i := range past {
		r := &past[i]
		if r.End.IsZero() || r.Start.IsZero() {
			continue // what runs is known better from the look
		}
		what := describe(r.Ref, r.User, r.App) + ", " + chart.Clock(r.Start) + "–" + chart.Clock(r.End)
		for _, g := range r.GPUs {
			c.add(gpuKey{r.Node, g}, r.Ref, what, r.Start, r.End, chart.Span{Whole: r.Shares == 0})
		}
	}
	free := map[gpuKey]time.Time{} // when it is expected to be empty
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		if j.State == job.Pending || j.Start.IsZero() {
			continue
		}
		what, end := describe(j.Ref, j.User, st.Apps[j.Ref].Key), expectedEnd(st, j)
		for _, g := range j.GPUs {
			k := gpuKey{j.Nodes, g}
			c.add(k, j.Ref, what+", since "+chart.Clock(j.Start), j.Start, now, chart.Span{Whole: j.Request.Kind != job.Shares})
			if end.After(now) {
				c.add(k, j.Ref, what+", expected to end "+chart.Clock(end), now, end, chart.Span{Plan: true})
			}
			if end.After(free[k]) {
				free[k] = end
			}
		}
	}
	for _, g := range planned(st) {
		k, from := gpuKey{g.Node, g.GPU}, now
		if free[k].After(from) {
			from = free[k]
		}
		for i := range g.Members {
			m := &g.Members[i]
			if !m.State.Pending() || g.Node == "" { // where it goes is Slurm's to choose
				continue
			}
			to := from.Add(10 * time.Minute)
			if p := st.Apps[m.Ref].Profile; p != nil {
				to = from.Add(time.Duration(p.DurationS * max(1, m.Predicted) * float64(time.Second)))
			}
			what := describe(m.Ref, m.User, m.App) + ", planned"
			if m.Predicted > 1 {
				what += fmt.Sprintf(", slowdown predicted %.2f", m.Predicted)
			}
			c.add(k, m.Ref, what, from, to, chart.Span{Plan: true})
		}
	}
	return c
}

// planned are the groups that are about to start; in shadow mode, the groups that would be made.
func planned(st *job.Status) (out []job.Group) {
	for _, g := range st.Groups {
		if g.State == job.Preparing || g.State == job.Released {
			out = append(out, g)
		}
	}
	if st.Mode == job.Shadow && st.Plan != nil {
		for i := range st.Plan.Groups {
			out = append(out, st.Plan.Groups[i].Group)
		}
	}
	return out
}

// expectedEnd is when a running job's profile says that it will end, zero = nothing
// does. A predicted slowdown counts.
func expectedEnd(st *job.Status, j *job.Job) time.Time {
	p := st.Apps[j.Ref].Profile
	if p == nil {
		return time.Time{}
	}
	slow := 1.0
	for i := range st.Groups {
		for k := range st.Groups[i].Members {
			if m := &st.Groups[i].Members[k]; m.Ref == j.Ref {
				slow = max(slow, m.Predicted)
			}
		}
	}
	return j.Start.Add(time.Duration(p.DurationS * slow * float64(time.Second)))
}

// busiest returns the GPUs to show: all in their order if there is room, otherwise the GPUs with
// the most jobs now, then in the past, from the skip-th on.
func (c *cluster) busiest(limit, skip int) []gpuKey {
	out := slices.Clone(c.order)
	if len(out) > limit {
		slices.SortStableFunc(out, func(a, b gpuKey) int {
			return cmp.Or(len(c.state[b].Jobs)-len(c.state[a].Jobs), len(c.spans[b])-len(c.spans[a]))
		})
	}
	skip = min(skip, len(out))
	return out[skip:min(len(out), skip+limit)]
}

// draw draws GPUs: from their first job on, since from at most, and as far as is expected, a quarter of that time and
// 15 minutes at most.
func (c *cluster) draw(keys []gpuKey, from, now time.Time) *chart.Timeline {
	t := &chart.Timeline{Title: "GPUs over time", From: from, Now: now}
	first, last := now, now
	for _, k := range keys {
		for _, s := range c.spans[k] {
			if s.From.Before(first) {
				first = s.From
			}
			if s.To.After(last) {
				last = s.To
			}
		}
	}
	if first.After(from) && last.After(first) {
		t.From = first
	}
	past := max(now.Sub(t.From), time.Minute)
	t.To = now.Add(min(max(last.Sub(now), past/20), max(now.Sub(from)/4, 15*time.Minute)))
	shared := 0
	for _, k := range keys {
		if len(c.state[k].Jobs) > 1 {
			shared++
		}
		name := fmt.Sprintf("%s gpu %d", k.node, k.gpu)
		t.Rows = append(t.Rows, chart.Row{Name: name, Note: onIt(c.state[k]), Spans: c.spans[k]})
	}
	t.Desc = fmt.Sprintf("%d GPUs from %s to %s; %d of them are shared now. Each row says in words what is on its GPU.",
		len(keys), chart.Clock(t.From), chart.Clock(t.To), shared)
	return t
}

func onIt(g *GPU) string {
	switch n := len(g.Jobs); {
	case !g.Up:
		return "out of service"
	case n == 0:
		return "idle"
	case g.Faulted:
		return "closed until its jobs have ended"
	case n == 1:
		return "1 job"
	default:
		return fmt.Sprintf("%d jobs share it", n)
	}
}

// describe names a job for people.
func describe(ref, user, app string) string {
	if strings.HasPrefix(ref, other) {
		return "another user's job"
	}
	return strings.Join(slices.DeleteFunc([]string{"job " + ref, user, app}, func(s string) bool { return s == "" }), ", ")
}
