package usage

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// Tell describes a run in five lines: how it ended, what it used, its co-runners, and the time that sharing cost and
// saved.
func Tell(o *history.Told) []string {
	return []string{
		howEnded(o), "  used    " + used(o), "  shared  " + shared(o), "  cost    " + cost(o), "  saved   " + gain(o),
	}
}

func howEnded(o *history.Told) string {
	held := ""
	if o.Used.GPUs > 0 {
		held = ", with " + GPUs(o.Used.GPUs)
	}
	how := cmp.Or(strings.ToLower(o.State), "ended")
	return fmt.Sprintf("job %s %s after %s on %s%s", o.Ref, how, duration(runTime(o).Seconds()), o.Node, held)
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

func used(o *history.Told) string {
	u := o.Used.Use
	if u == nil {
		return "unknown: no agent on its nodes saw it"
	}
	var parts []string
	if u.KnownS > 0 {
		text := fmt.Sprintf("it computed %.0f %% of the time", 100*u.ComputedS/u.KnownS)
		if gpus := o.Used.GPUs; gpus > 0 && gpus < 1 {
			text += fmt.Sprintf(", %.0f %% of its part of the GPU", 100*min(1, u.ComputedS/u.KnownS/gpus))
		}
		if all := runTime(o).Seconds(); u.KnownS < 0.95*all {
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

func shared(o *history.Told) string {
	if !o.Shared() {
		return "with nobody"
	}
	others := slices.Clone(o.With)
	for i := range others[:min(len(others), len(o.Others))] {
		others[i] += fmt.Sprintf(" (%s)", strings.TrimPrefix(o.Others[i].App+" of "+o.Others[i].Owner, " "))
	}
	text := "with " + strings.Join(others, ", ")
	if u := o.Used.Use; u != nil && u.SharedS > 0 {
		text += ", for " + duration(u.SharedS).String()
	}
	return text
}

func cost(o *history.Told) string {
	lost := runTime(o).Seconds() * (1 - 1/o.Slowdown)
	text := ""
	switch {
	case !o.Shared():
		return "nothing"
	case !(o.Slowdown > 0):
		text = "it isn't known how long it would have taken alone"
	case lost < 0.5:
		text = fmt.Sprintf("nothing: it took %.2f times its time alone", o.Slowdown)
	default:
		text = fmt.Sprintf("%s: it took %.2f times its time alone", duration(lost), o.Slowdown)
	}
	if o.Slowdown > 0 && o.Predicted > 0 {
		text += fmt.Sprintf(", %.2f predicted", o.Predicted)
	}
	switch {
	case o.Broken:
		text += fmt.Sprintf("; its contract of %.2f was broken", o.Contract)
	case o.Contract > 0 && o.Slowdown > 0:
		text += fmt.Sprintf("; its contract of %.2f was kept", o.Contract)
	}
	return text
}

func gain(o *history.Told) string {
	end := o.PlainEnd.Local().Format(time.DateTime)
	saved := o.PlainEnd.Sub(o.End).Seconds()
	switch {
	case o.PlainEnd.IsZero():
		return "it isn't known when plain Slurm would have ended it"
	case !o.Used.Timed:
		return "it can't be compared: plain Slurm would have ended it at " + end
	case math.Abs(saved) < 0.5:
		return "nothing: plain Slurm would have ended it at the same time"
	case saved > 0:
		return fmt.Sprintf("%s: plain Slurm would have ended it at %s", duration(saved), end)
	default:
		return fmt.Sprintf("nothing: plain Slurm would have ended it %s earlier, at %s", duration(-saved), end)
	}
}

func runTime(o *history.Told) time.Duration { return o.End.Sub(o.Start) }

// duration rounds a time to seconds, or below one second to tenths, at least 100 ms.
func duration(seconds float64) time.Duration {
	d := time.Duration(seconds * float64(time.Second))
	if rounded := d.Round(time.Second); rounded > 0 {
		return rounded
	}
	return max(d.Round(100*time.Millisecond), 100*time.Millisecond)
}
