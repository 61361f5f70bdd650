package cluster

import (
	"os"
	"strconv"
	"strings"
)

// Load is how busy this machine's CPUs are. What the simulated GPU computes doesn't
// depend on it, but Slurm's pauses grow where they are full.
type Load struct{ busy, all uint64 }

// NewLoad begins to watch.
func NewLoad() *Load {
	body, err := os.ReadFile("/proc/stat")
	if err != nil {
		return &Load{}
	}
	l := parseStat(string(body))
	return &l
}

// parseStat reads the line of all CPUs of /proc/stat: clock ticks spent busy and
// in all. What isn't such a text gives zeros.
func parseStat(text string) Load {
	line, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 6 || f[0] != "cpu" {
		return Load{}
	}
	var l Load
	for i, w := range f[1:min(len(f), 9)] { // guests are counted among users already
		n, err := strconv.ParseUint(w, 10, 64)
		if err != nil {
			return Load{}
		}
		l.all += n
		if i != 3 && i != 4 { // idle, and waiting for disks
			l.busy += n
		}
	}
	return l
}

// Since is the part of the CPUs' time that was busy since the last call; ok is false where
// it is unknown.
func (l *Load) Since() (busy float64, ok bool) {
	was, is := *l, *NewLoad()
	*l = is
	if is.all <= was.all || was.all == 0 {
		return 0, false
	}
	return float64(is.busy-was.busy) / float64(is.all-was.all), true
}
