package httpapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// timeline is the picture of GPUs over time: a row each, bars for jobs. All x are
// percent of its width, so that it fits any screen; y are pixels.
type timeline struct {
	Rows   []row
	Ticks  []mark
	NowX   float64
	Height int
	All    int    // GPUs there are
	Desc   string // text for screen readers
}

type mark struct {
	X    float64
	Text string
}

type row struct {
	Name string
	Note string // what is on it now, in words
	Y    int
	Bars []bar
}

// bar is a job, or several that are too short to be drawn alone.
type bar struct {
	X, W   float64 // percent
	Y, H   int     // px
	Class  string
	Label  string // within, "" = there is no room for it
	Small  bool   // there is none on a phone
	Detail string

	from, to time.Time
	job      string
	shared   bool
}

// span is a job on a GPU for some time.
type span struct {
	job, detail string
	from, to    time.Time
	plan        bool // it is expected, not observed
	whole       bool
}

type gpuKey struct {
	node string
	gpu  int
}

const (
	rowHeight = 52 // px: the name, and the bars below it
	barTop    = 18
	barHeight = 28
	narrow    = 0.25 // percent of the width: what is narrower is drawn with its neighbours
	roomy     = 4.0  // percent: enough for a job's number, on a phone twice as much
	maxBars   = 80   // a row
)

// window is what of the past and the future is shown.
type window struct{ from, now, to time.Time }

func (w window) x(t time.Time) float64 {
	return 100 * max(0, min(1, float64(t.Sub(w.from))/float64(w.to.Sub(w.from))))
}

// cluster is what is where, by GPU.
type cluster struct {
	order []gpuKey
	state map[gpuKey]*GPU
	spans map[gpuKey][]span
}

// layOut joins what was seen to run, what runs and what is planned.
func layOut(st *job.Status, past []history.Run, w window) *cluster {
	c := &cluster{state: map[gpuKey]*GPU{}, spans: map[gpuKey][]span{}}
	rep := MakeReport(st)
	for i := range rep.GPUs {
		g := &rep.GPUs[i]
		k := gpuKey{g.Node, g.GPU}
		c.order = append(c.order, k)
		c.state[k] = g
	}
	for i := range past {
		r := &past[i]
		if r.End.IsZero() || r.Start.IsZero() {
			continue // what runs is known better from the look
		}
		for _, g := range r.GPUs {
			k := gpuKey{r.Node, g}
			c.spans[k] = append(c.spans[k], span{
				job: r.Ref, from: r.Start, to: r.End, whole: r.Shares == 0,
				detail: describe(r.Ref, r.User, r.App) + ", " + clock(r.Start) + "–" + clock(r.End),
			})
		}
	}
	free := map[gpuKey]time.Time{} // when it is expected to be empty
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		if j.State == job.Pending || j.Start.IsZero() {
			continue
		}
		what := describe(j.Ref, j.User, st.Apps[j.Ref].Key)
		end := expectedEnd(st, j)
		for _, g := range j.GPUs {
			k := gpuKey{j.Nodes, g}
			whole := j.Request.Kind != job.Shares
			c.spans[k] = append(c.spans[k], span{job: j.Ref, from: j.Start, to: w.now, whole: whole, detail: what + ", since " + clock(j.Start)})
			if end.After(w.now) {
				c.spans[k] = append(c.spans[k], span{job: j.Ref, from: w.now, to: end, plan: true, detail: what + ", expected to end " + clock(end)})
				if end.After(free[k]) {
					free[k] = end
				}
			}
		}
	}
	for _, g := range planned(st) {
		if g.Node == "" {
			continue // its GPU is Slurm's to choose
		}
		k := gpuKey{g.Node, g.GPU}
		from := w.now
		if free[k].After(from) {
			from = free[k]
		}
		for i := range g.Members {
			m := &g.Members[i]
			if !m.State.Pending() {
				continue
			}
			to := from.Add(10 * time.Minute)
			if p := st.Apps[m.Ref].Profile; p != nil {
				to = from.Add(time.Duration(p.DurationS * max(1, m.Predicted) * float64(time.Second)))
			}
			detail := describe(m.Ref, m.User, m.App) + ", planned"
			if m.Predicted > 1 {
				detail += fmt.Sprintf(", slowdown predicted %.2f", m.Predicted)
			}
			c.spans[k] = append(c.spans[k], span{job: m.Ref, from: from, to: to, plan: true, detail: detail})
		}
	}
	return c
}

// planned are the groups that are about to start; in shadow mode, the groups that would be made.
func planned(st *job.Status) []job.Group {
	var out []job.Group
	for i := range st.Groups {
		if g := &st.Groups[i]; g.State == job.Preparing || g.State == job.Released {
			out = append(out, *g)
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
			return cmp.Or(cmp.Compare(len(c.state[b].Jobs), len(c.state[a].Jobs)), cmp.Compare(len(c.spans[b]), len(c.spans[a])))
		})
	}
	skip = min(skip, len(out))
	return out[skip:min(len(out), skip+limit)]
}

func (c *cluster) draw(keys []gpuKey, w window) *timeline {
	t := &timeline{NowX: w.x(w.now), All: len(c.order), Ticks: ticks(w)}
	shared := 0
	for i, k := range keys {
		r := row{Name: fmt.Sprintf("%s gpu %d", k.node, k.gpu), Y: 20 + i*rowHeight, Note: onIt(c.state[k])}
		if len(c.state[k].Jobs) > 1 {
			shared++
		}
		r.Bars = bars(c.spans[k], w)
		for b := range r.Bars {
			r.Bars[b].Y += r.Y + barTop
		}
		t.Rows = append(t.Rows, r)
	}
	t.Height = 20 + len(keys)*rowHeight
	t.Desc = fmt.Sprintf("%d GPUs from %s to %s; %d of them are shared now. The tables below say the same in words.",
		len(keys), clock(w.from), clock(w.to), shared)
	return t
}

func onIt(g *GPU) string {
	switch n := len(g.Jobs); {
	case !g.Up:
		return "out of service"
	case n == 0:
		return "idle"
	case n == 1:
		return "1 job"
	default:
		return fmt.Sprintf("%d jobs share it", n)
	}
}

// bars lays out a GPU's jobs: overlapping jobs go into separate lanes.
func bars(spans []span, w window) []bar {
	var in []span
	for _, s := range spans {
		if s.to.After(w.from) && s.from.Before(w.to) && !s.to.Before(s.from) {
			in = append(in, s)
		}
	}
	slices.SortStableFunc(in, func(a, b span) int { return cmp.Or(a.from.Compare(b.from), cmp.Compare(a.job, b.job)) })
	var out []bar
	for len(in) > 0 {
		// Jobs that hang together in time share the row's height.
		n, end := 1, in[0].to
		for n < len(in) && in[n].from.Before(end) {
			if in[n].to.After(end) {
				end = in[n].to
			}
			n++
		}
		out = append(out, lanes(in[:n], w)...)
		in = in[n:]
	}
	return merge(out)
}

func lanes(in []span, w window) []bar {
	var free []time.Time // when each lane's last job ends
	var lane []int
	var last []string
	for _, s := range in {
		at := slices.IndexFunc(last, func(job string) bool { return job == s.job }) // the expected rest of a job follows its bar
		if at < 0 || free[at].After(s.from) {
			at = slices.IndexFunc(free, func(t time.Time) bool { return !t.After(s.from) })
		}
		if at < 0 {
			at = len(free)
			free, last = append(free, time.Time{}), append(last, "")
		}
		free[at], last[at] = s.to, s.job
		lane = append(lane, at)
	}
	h := max(2, barHeight/len(free))
	out := make([]bar, len(in))
	for i, s := range in {
		b := bar{X: w.x(s.from), Y: lane[i] * h, H: h - 1, Detail: s.detail, from: s.from, to: s.to, job: s.job, shared: len(free) > 1}
		b.W = w.x(s.to) - b.X
		switch {
		case s.plan:
			b.Class = "plan"
		case len(free) > 2:
			b.Class = "three"
		case len(free) > 1:
			b.Class = "two"
		case s.whole:
			b.Class = "whole"
		default:
			b.Class = "one"
		}
		if b.W >= roomy && h >= 10 && !(s.plan && s.from.Equal(w.now)) {
			b.Label, b.Small = s.job, b.W < 2.5*roomy
		}
		out[i] = b
	}
	return out
}

// merge joins neighbouring bars that are too narrow to distinguish, then wider ones, until the row
// is small enough to send.
func merge(in []bar) []bar {
	for gap := narrow; ; gap *= 2 {
		var out []bar
		n := 0 // narrow bars that the last of out stands for
		for _, b := range in {
			k := len(out) - 1
			tiny := b.W < gap && b.Class != "plan"
			if tiny && n > 0 && b.X-(out[k].X+out[k].W) < gap {
				n++
				out[k].add(&b, n)
				continue
			}
			out = append(out, b)
			n = 0
			if tiny {
				n = 1
			}
		}
		if len(out) <= maxBars || gap > 100 {
			for i := range out {
				out[i].W = max(out[i].W, 0.12) // to be seen
			}
			return out
		}
	}
}

// add lets a bar stand for one more, n in all.
func (b *bar) add(o *bar, n int) {
	b.W = max(b.W, o.X+o.W-b.X)
	if o.to.After(b.to) {
		b.to = o.to
	}
	if o.shared && !b.shared {
		b.Class, b.shared = o.Class, true
	}
	b.Y, b.H, b.Label = 0, barHeight-1, ""
	b.Detail = fmt.Sprintf("%d short jobs, %s–%s", n, clock(b.from), clock(b.to))
}

// ticks are round times, at most seven.
func ticks(w window) []mark {
	steps := []time.Duration{
		time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour, 6 * time.Hour,
		12 * time.Hour, 24 * time.Hour, 48 * time.Hour,
	}
	step := steps[len(steps)-1]
	for _, s := range steps {
		if w.to.Sub(w.from)/s <= 6 {
			step = s
			break
		}
	}
	from := w.from.Local()
	day := time.Date(from.Year(), from.Month(), from.Day(), 0, 0, 0, 0, from.Location())
	var out []mark
	for t := day; !t.After(w.to); t = t.Add(step) {
		x := w.x(t)
		if t.Before(w.from) || x > 94 {
			continue
		}
		text := t.Format("15:04")
		if step >= 12*time.Hour {
			text = t.Format("Jan 2")
			if t.Hour() != 0 {
				text = t.Format("15:04")
			}
		}
		out = append(out, mark{x, text})
	}
	return out
}

func clock(t time.Time) string { return t.Local().Format("Jan 2 15:04") }

// describe names a job for people.
func describe(ref, user, app string) string {
	if strings.HasPrefix(ref, other) {
		return "another user's job"
	}
	parts := []string{"job " + ref}
	if user != "" {
		parts = append(parts, user)
	}
	if app != "" {
		parts = append(parts, app)
	}
	return strings.Join(parts, ", ")
}
