package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// load is how busy this machine's CPUs are. What the simulated GPU computes doesn't
// depend on it, but Slurm's pauses grow where they are full.
type load struct{ busy, all uint64 }

// newLoad begins to watch.
func newLoad() *load {
	body, err := os.ReadFile("/proc/stat")
	if err != nil {
		return &load{}
	}
	l := parseStat(string(body))
	return &l
}

// parseStat reads the line of all CPUs of /proc/stat: clock ticks spent busy and
// in all. What isn't such a text gives zeros.
func parseStat(text string) load {
	line, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 6 || f[0] != "cpu" {
		return load{}
	}
	var l load
	for i, w := range f[1:min(len(f), 9)] { // guests are counted among users already
		n, err := strconv.ParseUint(w, 10, 64)
		if err != nil {
			return load{}
		}
		l.all += n
		if i != 3 && i != 4 { // idle, and waiting for disks
			l.busy += n
		}
	}
	return l
}

// text says how busy they were since.
func (l *load) text() string {
	now := newLoad()
	if now.all <= l.all || l.all == 0 {
		return "How busy this machine's CPUs were is unknown."
	}
	part := float64(now.busy-l.busy) / float64(now.all-l.all)
	out := fmt.Sprintf("This machine's CPUs were busy for %.0f %% of the time.", 100*part)
	if part > 0.85 {
		out += " That makes Slurm's pauses longer: fewer clusters\nat a time (--parallel) or a smaller --scale give truer figures."
	}
	return out
}
