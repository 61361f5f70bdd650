package gpusim

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// State is an open state file. Its methods may be used by several goroutines.
type State struct {
	file *os.File
	mem  []byte
	devs []*Device
	mu   sync.Mutex // flock doesn't distinguish goroutines of one process
	// clock is CLOCK_MONOTONIC, ns, or a test's.
	clock func() int64
}

// Open opens the state file at path ("" = $GPUSIM_STATE).
func Open(path string) (*State, error) {
	s := &State{clock: monotonic}
	path, err := statePath(path)
	if err == nil {
		err = s.load(path)
	}
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("open simulated GPUs: %w", err)
	}
	return s, nil
}

func statePath(path string) (string, error) {
	if path = cmp.Or(path, os.Getenv(StateEnv)); path == "" {
		return "", errors.New(StateEnv + " is not set")
	}
	return path, nil
}

// load maps the file. What is in it is believed: a file that only this version of the program has made.
func (s *State) load(path string) (err error) {
	if s.file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return err
	}
	fi, err := s.file.Stat()
	if err != nil {
		return err
	}
	if fi.Size() < int64(fileSize(1)) {
		return fmt.Errorf("%s: %d bytes are no state file of simulated GPUs", path, fi.Size())
	}
	s.mem, err = unix.Mmap(int(s.file.Fd()), 0, int(fi.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s: %w", path, err)
	}
	h := s.header()
	if string(h.Magic[:]) != magic || h.Version != version || len(s.mem) != fileSize(h.Devices) {
		return fmt.Errorf("%s is not made by this version of gpusim: make it anew with gpusim init", path)
	}
	for i := range h.Devices {
		s.devs = append(s.devs, &Device{state: s, index: i, rec: deviceIn(s.mem, i)})
	}
	return nil
}

func headerIn(mem []byte) *fileHeader {
	return (*fileHeader)(unsafe.Pointer(&mem[0])) //nolint:gosec // the file is the struct
}

func deviceIn(mem []byte, i int) *deviceRec {
	return (*deviceRec)(unsafe.Pointer(&mem[headerSize+i*deviceSize])) //nolint:gosec // as above
}

// Close unmaps the file. Slots claimed through s stay until their process ends.
func (s *State) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := unix.Munmap(s.mem)
	s.mem = nil
	return errors.Join(err, s.file.Close())
}

func (s *State) header() *fileHeader { return headerIn(s.mem) }

// Devices returns the GPUs in NVML's order.
func (s *State) Devices() []*Device { return s.devs }

// Device returns GPU i; it panics when there is no such GPU.
func (s *State) Device(i int) *Device { return s.devs[i] }

// Driver returns the branch of the machine's driver: 535.
func (s *State) Driver() (branch int) {
	_, _ = fmt.Sscanf(cString(s.header().Driver[:]), "%d.", &branch) // Create has written it
	return branch
}

// Scale returns how many GPU seconds pass in a real second.
func (s *State) Scale() float64 { return s.header().Scale }

// Now returns the time on the GPUs' clock: GPU seconds since the file was made.
func (s *State) Now() float64 {
	return float64(s.clock()-s.header().T0ns) * 1e-9 * s.header().Scale
}

// locked runs f while no other process or goroutine changes the state.
func (s *State) locked(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem == nil {
		return os.ErrClosed
	}
	fd := int(s.file.Fd())
	err := unix.Flock(fd, unix.LOCK_EX)
	for errors.Is(err, unix.EINTR) {
		err = unix.Flock(fd, unix.LOCK_EX)
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	defer func() { _ = unix.Flock(fd, unix.LOCK_UN) }()
	return f()
}

// Undisturbed runs f while no process changes the state. What f stops holds no lock, at which all would wait.
func (s *State) Undisturbed(f func() error) error { return s.locked(f) }

func monotonic() int64 {
	var ts unix.Timespec
	// Linux always has this clock.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}
