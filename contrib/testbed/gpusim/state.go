package gpusim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What Open, and everything that takes the lock, can answer.
var (
	// ErrCorrupt: the file isn't a state file, is of another version, or damaged.
	ErrCorrupt = errors.New("not a usable state file of simulated GPUs")
	// ErrBusy: the lock has been held for seconds, as by a process that was
	// stopped by a signal while it had it.
	ErrBusy = errors.New("the simulated GPUs' state is locked")
	// ErrNoState: no path was given and GPUSIM_STATE isn't set.
	ErrNoState = errors.New("no state file of simulated GPUs: " + StateEnv + " is not set")
)

// State is an open state file. Its methods may be used by several goroutines.
type State struct {
	file *os.File
	mem  []byte
	devs []*Device
	mu   sync.Mutex // flock doesn't distinguish goroutines of one process
	// lock gets the outcome of waiting for the file's lock, nil = not waiting. The wait is bounded, since a holder that is
	// stopped by a signal would block all processes.
	lock chan error
	wait time.Duration
	// clock is CLOCK_MONOTONIC, ns, or a test's.
	clock func() int64
}

// lockWait is much longer than what all processes of a busy machine need with the state.
const lockWait = 20 * time.Second

// Open opens the state file at path ("" = $GPUSIM_STATE). It returns an error
// that wraps ErrNoState, ErrCorrupt or fs.ErrNotExist.
func Open(path string) (*State, error) {
	path, err := statePath(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open simulated GPUs: %w", err)
	}
	s := &State{file: f, wait: lockWait, clock: monotonic}
	if err := s.load(); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("open simulated GPUs %s: %w", path, err)
	}
	return s, nil
}

func statePath(path string) (string, error) {
	if path = cmp.Or(path, os.Getenv(StateEnv)); path == "" {
		return "", ErrNoState
	}
	return path, nil
}

func (s *State) load() error {
	fi, err := s.file.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() || fi.Size() < int64(fileSize(1)) || fi.Size() > int64(fileSize(MaxDevices)) {
		return fmt.Errorf("%w: %d bytes", ErrCorrupt, fi.Size())
	}
	s.mem, err = unix.Mmap(int(s.file.Fd()), 0, int(fi.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	h := s.header()
	switch {
	case string(h.Magic[:]) != magic:
		return fmt.Errorf("%w: it doesn't begin as one", ErrCorrupt)
	case h.Version != version:
		return fmt.Errorf("%w: version %d, this program knows %d: make it anew with gpusim init", ErrCorrupt, h.Version, version)
	case h.Devices < 1 || h.Devices > MaxDevices || h.Size != uint64(fileSize(int(h.Devices))) || h.Size != uint64(fi.Size()):
		return fmt.Errorf("%w: %d devices in %d bytes", ErrCorrupt, h.Devices, fi.Size())
	case h.Check != checksum(s.mem[:unsafe.Offsetof(h.Check)]), !(h.Scale > 0):
		return fmt.Errorf("%w: the header's checksum is wrong", ErrCorrupt)
	case monotonic() < h.T0ns:
		return fmt.Errorf("%w: made before the machine's last start: make it anew with gpusim init", ErrCorrupt)
	}
	for i := range int(h.Devices) {
		d := &Device{state: s, index: i, rec: (*deviceRec)(unsafe.Pointer(&s.mem[headerSize+i*deviceSize]))} //nolint:gosec // the file is the struct
		if err := d.rec.check(); err != nil {
			return fmt.Errorf("%w: GPU %d: %w", ErrCorrupt, i, err)
		}
		s.devs = append(s.devs, d)
	}
	return nil
}

// check reports whether the constant figures can be true.
func (d *deviceRec) check() error {
	for _, v := range []float64{d.MemTotal, d.PCIeMBps, d.PowerMax} {
		if !(v > 0) || math.IsInf(v, 0) {
			return fmt.Errorf("a figure of the card is %v", v)
		}
	}
	for _, v := range []float64{d.MemReserved, d.MemContext, d.PowerIdle, d.PowerActive} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return fmt.Errorf("a figure of the card is %v", v)
		}
	}
	if len(cString(d.UUID[:])) != len("GPU-")+36 {
		return errors.New("no UUID")
	}
	return nil
}

// Close unmaps the file. Slots claimed through s stay until their process ends.
func (s *State) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.mem != nil {
		err = unix.Munmap(s.mem)
		s.mem, s.devs = nil, nil
	}
	return errors.Join(err, s.file.Close())
}

func (s *State) header() *fileHeader {
	return (*fileHeader)(unsafe.Pointer(&s.mem[0])) //nolint:gosec // the file is the struct
}

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
	if s.lock == nil {
		s.lock = make(chan error, 1)
		go func(lock chan<- error) {
			err := unix.Flock(fd, unix.LOCK_EX)
			for errors.Is(err, unix.EINTR) {
				err = unix.Flock(fd, unix.LOCK_EX)
			}
			lock <- err
		}(s.lock)
	}
	select {
	case err := <-s.lock:
		s.lock = nil
		if err != nil {
			return fmt.Errorf("lock: %w", err)
		}
	case <-time.After(s.wait): // the next call waits for the same lock
		return ErrBusy
	}
	defer func() { _ = unix.Flock(fd, unix.LOCK_UN) }()
	// A file cut short would end the program with SIGBUS.
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if st.Size < int64(len(s.mem)) {
		return fmt.Errorf("%w: it was cut short", ErrCorrupt)
	}
	return f()
}

// current returns the device's changing state, or ErrCorrupt.
func (d *deviceRec) current() (*dyn, error) {
	c := atomic.LoadUint32(&d.Cur)
	if c > 1 {
		return nil, fmt.Errorf("%w: no current state", ErrCorrupt)
	}
	return &d.Dyn[c], nil
}

// commit makes next the device's changing state. A process killed on the way
// leaves the old one.
func (d *deviceRec) commit(next *dyn) {
	other := 1 - atomic.LoadUint32(&d.Cur)
	d.Dyn[other] = *next
	atomic.StoreUint32(&d.Cur, other)
}

func monotonic() int64 {
	var ts unix.Timespec
	// Linux always has this clock.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}
