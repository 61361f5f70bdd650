package gpusim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

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
	_, start, err := procStat(pid)
	return start, err
}

// procStat reads a process's state letter and start time from /proc/PID/stat.
// The command in it is the process's own choice and can hold anything, so what
// follows the last ')' counts.
func procStat(pid int) (state byte, start uint64, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	return parseStat(b)
}

func parseStat(b []byte) (state byte, start uint64, err error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, 0, errors.New("stat without a command")
	}
	f := bytes.Fields(b[i+1:])
	const stateField, startField = 0, 19 // fields 3 and 22 of proc(5)
	if len(f) <= startField || len(f[stateField]) != 1 {
		return 0, 0, fmt.Errorf("stat with %d fields", len(f))
	}
	start, err = strconv.ParseUint(string(f[startField]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("stat: start time: %w", err)
	}
	return f[stateField][0], start, nil
}

// look says whether the process that started at the given time is still there.
func look(pid int32, start uint64) life {
	state, s, err := procStat(int(pid))
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
	case s != start, state == 'Z', state == 'X':
		return dead
	case state == 'T', state == 't':
		return stopped
	}
	return alive
}
