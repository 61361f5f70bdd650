package usage

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// Tell describes a judged run in five lines: its end, its use, its co-runners, and what sharing cost and saved it.
func Tell(r *history.Run) []string {
	f := r.Footprint()
	return []string{
		ended(r, &f),
		"  used    " + used(r, &f),
		"  shared  " + shared(r),
		"  cost    " + cost(r),
		"  saved   " + gain(r, &f),
	}
}

func ended(r *history.Run, f *history.Footprint) string {
	held := ""
	if f.GPUs > 0 {
		held = ", with " + GPUs(f.GPUs)
	}
	how := cmp.Or(strings.ToLower(r.State()), "ended")
	return fmt.Sprintf("job %s %s after %s on %s%s", r.Ref, how, duration(r.DurationS()), r.Node, held)
}

// GPUs words a number of GPUs, or a part of one.
func GPUs(n float64) string {
	switch {
	case n == 1:
		return "a GPU"
	case n > 1:
		return fmt.Sprintf("%g GPUs", n)
	}
	return fmt.Sprintf("%.0f %% of a GPU", 100*n)
}

func used(r *history.Run, f *history.Footprint) string {
	u := r.Use
	if u == nil {
		return "unknown: no agent on its nodes saw it"
	}
	var parts []string
	if u.KnownS > 0 {
		text := fmt.Sprintf("it computed %.0f %% of the time", 100*u.ComputedS/u.KnownS)
		if gpus := f.GPUs; gpus > 0 && gpus < 1 {
			text += fmt.Sprintf(", %.0f %% of its part of the GPU", 100*min(1, u.ComputedS/u.KnownS/gpus))
		}
		if all := r.DurationS(); u.KnownS < 0.95*all {
			text += fmt.Sprintf(" (seen for %.0f %% of it)", 100*u.KnownS/all)
		}
		parts = append(parts, text)
	} else {
		parts = append(parts, "it isn't known how much it computed")
	}
	if u.CardMiB > 0 {
		parts = append(parts, fmt.Sprintf("%.1f of %.1f GiB of GPU memory at most", u.PeakMiB/1024, u.CardMiB/1024))
	}
	if u.IdleS > 0 {
		parts = append(parts, fmt.Sprintf("it was idle for %s", duration(u.IdleS)))
	}
	return strings.Join(parts, ", ")
}

func shared(r *history.Run) string {
	if !r.Shared() {
		return "with nobody"
	}
	with := r.With()
	for i := range with {
		if c := &r.CoRunners[i]; c.App+c.Owner != "" {
			with[i] += fmt.Sprintf(" (%s)", strings.TrimPrefix(c.App+" of "+c.Owner, " "))
		}
	}
	text := "with " + strings.Join(with, ", ")
	if u := r.Use; u != nil && u.SharedS > 0 {
		text += ", for " + duration(u.SharedS).String()
	}
	return text
}

func cost(r *history.Run) string {
	o := r.Outcome
	lost := r.DurationS() * (1 - 1/o.Slowdown)
	text := ""
	switch {
	case !r.Shared():
		return "nothing"
	case !(o.Slowdown > 0):
		text = "it isn't known how long it would have taken alone"
	case lost < 0.5:
		text = fmt.Sprintf("nothing: it took %.2f times its time alone", o.Slowdown)
	default:
		text = fmt.Sprintf("%s: it took %.2f times its time alone", duration(lost), o.Slowdown)
	}
	if predicted := r.Predicted(); o.Slowdown > 0 && predicted > 0 {
		text += fmt.Sprintf(", %.2f predicted", predicted)
	}
	switch {
	case o.Broken:
		text += fmt.Sprintf("; its contract of %.2f was broken", o.Contract)
	case o.Contract > 0 && o.Slowdown > 0:
		text += fmt.Sprintf("; its contract of %.2f was kept", o.Contract)
	}
	return text
}

func gain(r *history.Run, f *history.Footprint) string {
	plainEnd := r.Ending.PlainEnd
	end := plainEnd.Local().Format(time.DateTime)
	saved := plainEnd.Sub(r.End).Seconds()
	switch {
	case plainEnd.IsZero():
		return "it isn't known when plain Slurm would have ended it"
	case !f.Timed:
		return "it can't be compared: plain Slurm would have ended it at " + end
	case math.Abs(saved) < 0.5:
		return "nothing: plain Slurm would have ended it at the same time"
	case saved > 0:
		return fmt.Sprintf("%s: plain Slurm would have ended it at %s", duration(saved), end)
	default:
		return fmt.Sprintf("nothing: plain Slurm would have ended it %s earlier, at %s", duration(-saved), end)
	}
}

// duration rounds a time to seconds, or below one second to tenths, at least 100 ms.
func duration(seconds float64) time.Duration {
	d := time.Duration(seconds * float64(time.Second))
	if rounded := d.Round(time.Second); rounded > 0 {
		return rounded
	}
	return max(d.Round(100*time.Millisecond), 100*time.Millisecond)
}
