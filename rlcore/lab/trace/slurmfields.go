package trace

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// gpus returns the GPUs of the first of the TRES columns that isn't empty, e.g.
// "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G": the count over all types
// where it is there, else the sum over the types. A part of one (gres/mps,
// gres/shard) counts as one.
func (r *row) gpus(columns []string) int {
	for _, col := range columns {
		tres := r.text(col)
		if tres == "" {
			continue
		}
		all, typed, part := 0.0, 0.0, 0.0
		for _, item := range strings.Split(tres, ",") {
			what, count, _ := strings.Cut(item, "=")
			kind, _, isTyped := strings.Cut(what, ":")
			if kind != "gres/gpu" && kind != "gres/mps" && kind != "gres/shard" {
				continue
			}
			n, err := parseNumber(count)
			if err == nil && (n != math.Trunc(n) || n < 0 || n > maxGPUs) {
				err = fmt.Errorf("%w: %.40q is no number of GPUs", ErrOutOfRange, item)
			}
			if err != nil {
				r.fail(col, err)
				return 0
			}
			switch {
			case kind != "gres/gpu":
				part = max(part, min(n, 1))
			case isTyped:
				typed += n
			default:
				all = n
			}
		}
		if all == 0 {
			all = typed
		}
		return int(max(all, part))
	}
	return 0
}

// lasted returns the run time, s; 0 where it has none.
func (r *row) lasted(col string) float64 {
	switch col {
	case "elapsedraw":
		return r.number(col, 0, maxDurationS)
	case "elapsed":
		if r.text(col) == "" {
			r.fail(col, ErrMissing)
			return 0
		}
		v, err := parseElapsed(r.text(col))
		if err != nil {
			r.fail(col, err)
		}
		return v
	}
	if unknownTime(r.text("start")) {
		return 0 // it was cancelled before it began
	}
	v := r.stamp("end") - r.stamp("start")
	if r.err == nil && (v < 0 || v > maxDurationS) {
		r.fail("end", fmt.Errorf("%w: it ended %g s after its start", ErrOutOfRange, v))
	}
	return v
}

// parseElapsed reads [DD-][HH:]MM:SS[.mmm], s.
func parseElapsed(s string) (float64, error) {
	bad := fmt.Errorf("%.40q is no run time: [days-][hours:]minutes:seconds", s)
	days, clock, ok := strings.Cut(s, "-")
	if !ok {
		days, clock = "0", s
	}
	parts := strings.Split(clock, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return 0, bad
	}
	total, err := parseNumber(days)
	if err != nil || total < 0 {
		return 0, bad
	}
	total *= 24
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	for i, part := range parts {
		v, err := parseNumber(part)
		if err != nil || v < 0 || math.Signbit(v) || i > 0 && v >= 60 {
			return 0, bad
		}
		if i == 0 {
			total += v
			continue
		}
		total = 60*total + v
	}
	if total > maxDurationS {
		return 0, fmt.Errorf("%w: %.40s is more than %g s", ErrOutOfRange, s, float64(maxDurationS))
	}
	return total, nil
}

func unknownTime(s string) bool { return s == "" || s == "Unknown" || s == "None" || s == "N/A" }

// stamp returns an instant as seconds since 1970, if the machine's clock showed
// UTC: only differences are used.
func (r *row) stamp(col string) float64 {
	s := r.text(col)
	if unknownTime(s) {
		r.fail(col, ErrMissing)
		return 0
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 && n < maxSubmitS {
		return float64(n) // SLURM_TIME_FORMAT=%s
	}
	at, err := time.Parse("2006-01-02T15:04:05", s)
	if err != nil || at.Unix() < 0 || at.Unix() >= maxSubmitS {
		r.fail(col, fmt.Errorf("%.40q is no time like 2024-01-31T23:59:59", s))
		return 0
	}
	return float64(at.Unix())
}
