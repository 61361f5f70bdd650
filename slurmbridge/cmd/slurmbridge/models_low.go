package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	schedIdle    = 5       // SCHED_IDLE: runs where no other process wants to
	ioIdle       = 3 << 13 // IOPRIO_CLASS_IDLE
	ioWhoProcess = 1
	nicest       = 19
	// mostData is what the process may allocate at the most, bytes. Its runtime tries to
	// keep to a part of that (GOMEMLIMIT).
	mostData = 2 << 30
)

// lowest gives this process the lowest priorities there are, the most of the blame
// when memory runs out, and a bound on what it may allocate. It returns what could
// not be had.
func lowest() error {
	var errs []error
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		errs = append(errs, err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: mostData, Max: mostData}); err != nil {
		errs = append(errs, fmt.Errorf("limit memory: %w", err))
	}
	// On Linux these belong to threads. A new one has those of the thread that made it:
	// once a pass meets none that it hadn't met, all have them.
	done := map[int]bool{}
	for fresh := true; fresh; {
		fresh = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || done[tid] {
				continue
			}
			done[tid], fresh = true, true
			if err := lower(tid); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func lower(tid int) error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, tid, nicest); err != nil {
		return fmt.Errorf("nice: %w", err)
	}
	if err := idle(tid); err != nil {
		return fmt.Errorf("run when idle: %w", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioWhoProcess, uintptr(tid), ioIdle); errno != 0 {
		return fmt.Errorf("read and write when idle: %w", errno)
	}
	return nil
}

// idle puts a thread into SCHED_IDLE. sched_setscheduler does, other than
// sched_setattr, wherever a service may have no real-time priorities.
func idle(tid int) error {
	var param struct{ priority int32 }
	if _, _, errno := unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), schedIdle, uintptr(unsafe.Pointer(&param))); errno != 0 { //nolint:gosec // the system reads one number
		return errno
	}
	return nil
}
