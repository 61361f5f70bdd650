package usage

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// Tell is one run in five lines: how it ended, what it used, with whom it shared, what that cost and what it saved.
func Tell(o *history.Told) []string {
	return []string{
		ended(o), "  used    " + used(o), "  shared  " + shared(o), "  cost    " + cost(o), "  saved   " + gain(o),
	}
}

func ended(o *history.Told) string {
	held := ""
	if o.Used.GPUs > 0 {
		held = ", with " + GPUs(o.Used.GPUs)
	}
	how := cmp.Or(strings.ToLower(o.State), "ended")
	return fmt.Sprintf("job %s %s after %s on %s%s", o.Ref, how, lasting(took(o).Seconds()), o.Node, held)
}

// GPUs says how many a job holds, which may be a part of one.
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
		return "it isn't known what: no agent of its nodes saw it"
	}
	var parts []string
	if took := took(o).Seconds(); u.KnownS > 0 {
		text := fmt.Sprintf("it computed %.0f %% of the time", 100*u.ComputedS/u.KnownS)
		if gpus := o.Used.GPUs; gpus > 0 && gpus < 1 {
			text += fmt.Sprintf(", %.0f %% of its part of the GPU", 100*min(1, u.ComputedS/u.KnownS/gpus))
		}
		if u.KnownS < 0.95*took {
			text += fmt.Sprintf(" (seen for %.0f %% of it)", 100*u.KnownS/took)
		}
		parts = append(parts, text)
	} else {
		parts = append(parts, "it isn't known how much it computed")
	}
	if u.CardMiB > 0 {
		parts = append(parts, fmt.Sprintf("%.1f of %.1f GiB of GPU memory at most", u.PeakMiB/1024, u.CardMiB/1024))
	}
	if u.IdleS > 0 {
		parts = append(parts, fmt.Sprintf("it did nothing for %s", lasting(u.IdleS)))
	}
	return strings.Join(parts, ", ")
}

func shared(o *history.Told) string {
	if !o.Shared() {
		return "with nobody"
	}
	with := make([]string, len(o.With))
	for i, ref := range o.With {
		if with[i] = ref; i < len(o.Others) {
			with[i] += fmt.Sprintf(" (%s)", strings.TrimPrefix(o.Others[i].App+" of "+o.Others[i].Owner, " "))
		}
	}
	text := "with " + strings.Join(with, ", ")
	if u := o.Used.Use; u != nil && u.SharedS > 0 {
		text += ", for " + lasting(u.SharedS).String()
	}
	return text
}

func cost(o *history.Told) string {
	text := ""
	switch lost := took(o).Seconds() * (1 - 1/o.Slowdown); {
	case !o.Shared():
		return "nothing"
	case !(o.Slowdown > 0):
		text = "it isn't known how long it would have taken alone"
	case lost < 0.5:
		text = fmt.Sprintf("nothing: it took %.2f times its time alone", o.Slowdown)
	default:
		text = fmt.Sprintf("%s: it took %.2f times its time alone", lasting(lost), o.Slowdown)
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
	switch gain := o.PlainEnd.Sub(o.End).Seconds(); {
	case o.PlainEnd.IsZero():
		return "it isn't known when plain Slurm would have ended it"
	case !o.Used.Timed:
		return "it can't be compared: plain Slurm would have ended it at " + end
	case math.Abs(gain) < 0.5:
		return "nothing: plain Slurm would have ended it at the same time"
	case gain > 0:
		return fmt.Sprintf("%s: plain Slurm would have ended it at %s", lasting(gain), end)
	default:
		return fmt.Sprintf("nothing: plain Slurm would have ended it %s earlier, at %s", lasting(-gain), end)
	}
}

func took(o *history.Told) time.Duration { return o.End.Sub(o.Start) }

// lasting is a time for people: in seconds, or within the first second in tenths.
func lasting(seconds float64) time.Duration {
	d := time.Duration(seconds * float64(time.Second))
	if rounded := d.Round(time.Second); rounded > 0 {
		return rounded
	}
	return max(d.Round(100*time.Millisecond), 100*time.Millisecond)
}
