package httpapi

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/chart"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// lane is a GPU over time.
type lane struct {
	GPU
	spans []chart.Span
}

// show counts GPUs and draws those that the options select: all in order if they fit, else the busiest first.
func (v *view) show(gpus []GPU, runs []history.Run, m *mask) {
	spans := spansOf(v.Status, runs, v.Now, m)
	var lanes []lane
	v.GPUCount = CountUses(gpus)
	for _, g := range gpus {
		lanes = append(lanes, lane{g, spans[job.GPUAddr{Node: g.Node, GPU: g.GPU}]})
	}
	if len(lanes) > v.GPUs {
		slices.SortStableFunc(lanes, func(a, b lane) int {
			return cmp.Or(len(b.Jobs)-len(a.Jobs), len(b.spans)-len(a.spans))
		})
	}
	v.All = len(lanes)
	from := min(v.Skip, v.All)
	lanes = lanes[from:min(v.All, from+v.GPUs)]
	v.Shown = len(lanes)
	if v.Skip+v.Shown < v.All {
		v.Next = v.Skip + v.Shown
	}
	v.Time = drawLanes(lanes, v.Now.Add(-time.Duration(v.Hours)*time.Hour), v.Now).HTML()
}

// spansOf returns past, present and planned jobs by GPU.
func spansOf(st *job.Status, runs []history.Run, now time.Time, m *mask) map[job.GPUAddr][]chart.Span {
	out := map[job.GPUAddr][]chart.Span{}
	add := func(at job.GPUAddr, ref, detail string, from, to time.Time, s chart.Span) {
		s.Job, s.Detail, s.From, s.To = m.ref(ref), detail, from, to
		out[at] = append(out[at], s)
	}
	for i := range runs {
		r := &runs[i]
		if r.End.IsZero() || r.Start.IsZero() {
			continue // st has the jobs that still run
		}
		m.add(r.Ref, r.User)
		what := m.describe(r.Ref, r.User, r.App) + ", " + chart.Clock(r.Start) + "–" + chart.Clock(r.End)
		for _, g := range r.GPUs {
			add(job.GPUAddr{Node: r.Node, GPU: g}, r.Ref, what, r.Start, r.End, chart.Span{Whole: r.Shares == 0})
		}
	}
	slow := map[string]float64{} // predicted, by job
	for i := range st.Groups {
		for k := range st.Groups[i].Members {
			x := &st.Groups[i].Members[k]
			slow[x.Ref] = max(slow[x.Ref], x.Predicted)
		}
	}
	// lasts returns the duration in a job's profile times its slowdown; 0 = unknown.
	lasts := func(ref string, slow float64) time.Duration {
		p := st.Apps[ref].Profile
		if p == nil {
			return 0
		}
		return time.Duration(p.DurationS * max(1, slow) * float64(time.Second))
	}
	free := map[job.GPUAddr]time.Time{} // when the GPU's last job is expected to end
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		if j.State == job.Pending || j.Start.IsZero() {
			continue
		}
		what := m.describe(j.Ref, j.User, st.Apps[j.Ref].Key)
		end := time.Time{}
		if d := lasts(j.Ref, slow[j.Ref]); d > 0 {
			end = j.Start.Add(d)
		}
		for _, at := range j.Holds() {
			add(at, j.Ref, what+", since "+chart.Clock(j.Start), j.Start, now, chart.Span{Whole: j.Request.Kind != job.Shares})
			if end.After(now) {
				add(at, j.Ref, what+", expected to end "+chart.Clock(end), now, end, chart.Span{Plan: true})
			}
			free[at] = latest(free[at], end)
		}
	}
	for _, g := range planned(st) {
		at := job.GPUAddr{Node: g.Node, GPU: g.GPU}
		from := latest(now, free[at])
		for i := range g.Members {
			x := &g.Members[i]
			if !x.State.Pending() || g.Node == "" { // Slurm chooses the GPU
				continue
			}
			what := m.describe(x.Ref, x.User, x.App) + ", planned"
			if x.Predicted > 1 {
				what += fmt.Sprintf(", slowdown predicted %.2f", x.Predicted)
			}
			add(at, x.Ref, what, from, from.Add(cmp.Or(lasts(x.Ref, x.Predicted), 10*time.Minute)), chart.Span{Plan: true})
		}
	}
	return out
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// planned returns the groups that are about to start, and in shadow mode the plan's groups.
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

// drawLanes draws GPUs from their first job on, but not before from, until the last expected end, but at most a quarter
// of the time since from, or 15 minutes, into the future.
func drawLanes(lanes []lane, from, now time.Time) *chart.Timeline {
	t := &chart.Timeline{Title: "GPUs over time", From: from, Now: now}
	first := now
	last := now
	shared := 0
	for _, l := range lanes {
		for _, s := range l.spans {
			if s.From.Before(first) {
				first = s.From
			}
			last = latest(last, s.To)
		}
		n := len(l.Jobs)
		note := fmt.Sprintf("%d jobs share it", n)
		switch {
		case !l.Up:
			note = "out of service"
		case n == 0:
			note = "idle"
		case l.Faulted:
			note = "closed until its jobs have ended"
		case n == 1:
			note = "1 job"
		}
		if n > 1 {
			shared++
		}
		t.Rows = append(t.Rows, chart.Row{Name: fmt.Sprintf("%s gpu %d", l.Node, l.GPU.GPU), Note: note, Spans: l.spans})
	}
	if first.After(from) && last.After(first) {
		t.From = first
	}
	past := max(now.Sub(t.From), time.Minute)
	t.To = now.Add(min(max(last.Sub(now), past/20), max(now.Sub(from)/4, 15*time.Minute)))
	t.Desc = fmt.Sprintf("%d GPUs from %s to %s; %d of them are shared now. Each row says what runs on its GPU.",
		len(lanes), chart.Clock(t.From), chart.Clock(t.To), shared)
	return t
}
