package gpusim

import (
	"errors"
	"io/fs"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

type life int

const (
	dead life = iota
	stopped
	alive
)

// startTime returns a process's start time in clock ticks since boot.
func startTime(pid int) (uint64, error) {
	st, err := procStat(pid)
	return st.Starttime, err
}

func procStat(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// lifeOf says whether the process that started at the given time is still there.
func lifeOf(pid int32, start uint64) life {
	st, err := procStat(int(pid))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return dead
		}
		// /proc hides it (hidepid): a signal shows the same, without the start time.
		if errors.Is(unix.Kill(int(pid), 0), unix.ESRCH) {
			return dead
		}
		return alive
	}
	switch {
	case st.Starttime != start, st.State == "Z", st.State == "X":
		return dead
	case st.State == "T", st.State == "t":
		return stopped
	}
	return alive
}
