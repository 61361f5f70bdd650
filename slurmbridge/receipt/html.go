package receipt

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/chart"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

//go:embed receipt.html
var source string

// What the page shows at most, so that it stays one.
const (
	mostPoints = 500
	mostBars   = 12
)

// HTML writes the receipt as one file that needs no other, at most limit lines a
// list.
func (r *Receipt) HTML(w io.Writer, limit int) error {
	t, err := template.New("receipt").Funcs(template.FuncMap{
		"span": span, "count": job.Count, "join": func(s []string) string { return strings.Join(s, ", ") },
		"neg": func(v float64) float64 { return -v }, "percent": func(v float64) float64 { return 100 * v }, "diff": func(a, b float64) float64 { return a - b }, "when": func(t time.Time) string { return t.Local().Format("2006-01-02 15:04") },
		"why": func(s string) string { return strings.TrimPrefix(s, ErrReplay.Error()+": ") },
	}).Parse(source)
	if err != nil {
		return fmt.Errorf("receipt as HTML: %w", err)
	}
	v := struct {
		*Receipt
		CSS                         template.CSS
		HoursPic, Scatter, WaitsPic template.HTML
		Failed                      []Failure
		Broken                      []Contract
		ByUser, ByAccount           []Change
		More                        map[string]int
	}{
		Receipt: r, CSS: template.CSS(chart.CSS), HoursPic: r.hoursPicture(), Scatter: r.scatter(), WaitsPic: r.waitsPicture(), //nolint:gosec // the program's own
		More: map[string]int{},
	}
	cut := func(name string, n int) int {
		v.More[name] = max(0, n-limit)
		return min(n, limit)
	}
	v.Failed = r.Failures[:cut("failures", len(r.Failures))]
	v.Broken = r.Contracts.List[:cut("contracts", len(r.Contracts.List))]
	if r.Replay != nil {
		v.ByUser = r.Replay.Users[:cut("users", len(r.Replay.Users))]
		v.ByAccount = r.Replay.Accounts[:cut("accounts", len(r.Replay.Accounts))]
	}
	var b bytes.Buffer
	if err := t.Execute(&b, v); err != nil {
		return fmt.Errorf("receipt as HTML: %w", err)
	}
	if _, err := io.WriteString(w, clean(b.String())); err != nil {
		return fmt.Errorf("receipt as HTML: %w", err)
	}
	return nil
}

func hours(v float64) string { return fmt.Sprintf("%.1f h", v) }

func (r *Receipt) hoursPicture() template.HTML {
	b := chart.Bars{Title: "GPU-hours", Desc: "used, and one by one"}
	h := r.Hours
	if h.ByProfile+h.ByGuess+h.Lost > 0 {
		b.Bars = append(b.Bars,
			chart.Bar{Label: "one by one, about", Value: h.OneByOne, Text: hours(h.OneByOne)},
			chart.Bar{Label: "used", Value: h.Used, Text: hours(h.Used), Class: better(h.Saved)})
	}
	if x := r.Replay; x != nil {
		b.Bars = append(b.Bars,
			chart.Bar{Label: "replayed one by one", Value: x.Alone.GPUHours, Text: hours(x.Alone.GPUHours)},
			chart.Bar{Label: "replayed sharing (estimate)", Value: x.Shared.GPUHours, Text: hours(x.Shared.GPUHours), Class: better(x.Alone.GPUHours - x.Shared.GPUHours)})
	}
	if len(b.Bars) == 0 {
		return ""
	}
	return b.HTML()
}

func better(gain float64) string {
	if gain < 0 {
		return "bad"
	}
	return "good"
}

func (r *Receipt) scatter() template.HTML {
	s := chart.Scatter{Title: "Slowdown, predicted and measured", X: "predicted", Y: "measured"}
	from := max(0, len(r.Points)-mostPoints)
	for _, p := range r.Points[from:] {
		s.Points = append(s.Points, chart.Point{X: p.Predicted, Y: p.Seen, Bad: p.Broken, Label: fmt.Sprintf("job %s, %s: predicted %.2f, measured %.2f", p.Ref, p.App, p.Predicted, p.Seen)})
	}
	if len(s.Points) == 0 {
		return ""
	}
	s.Desc = fmt.Sprintf("%d runs", len(s.Points))
	return s.HTML()
}

// waitsPicture shows the users with the largest change in waiting.
func (r *Receipt) waitsPicture() template.HTML {
	if r.Replay == nil {
		return ""
	}
	all := slices.Clone(r.Replay.Users)
	slices.SortStableFunc(all, func(a, b Change) int {
		return cmp.Compare(math.Abs(b.ShorterH-b.LongerH), math.Abs(a.ShorterH-a.LongerH))
	})
	c := chart.Bars{Title: "Waits by user", Desc: "hours that all jobs of a user wait less by sharing"}
	for i := range all[:min(len(all), mostBars)] {
		x := &all[i]
		d := x.ShorterH - x.LongerH
		text := span(d) + " less"
		if d < 0 {
			text = span(-d) + " more"
		}
		c.Bars = append(c.Bars, chart.Bar{Label: x.name(), Value: d, Text: text, Class: better(d)})
	}
	return c.HTML()
}
