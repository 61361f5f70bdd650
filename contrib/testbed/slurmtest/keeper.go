package slurmtest

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// keeper is a thread of its own that every daemon of a cluster is started from.
// Two things hang on a thread, not on a process: a child's death signal comes
// when the thread that started it ends, and a child is born into that thread's
// mount namespace.
type keeper struct {
	tid  int
	once sync.Once
	work chan func()
	quit chan struct{} // closed to end the thread
	end  chan struct{} // closed when it ends
}

// newKeeper starts the thread and runs prepare there.
func newKeeper(prepare func() error) (*keeper, error) {
	k := &keeper{work: make(chan func()), quit: make(chan struct{}), end: make(chan struct{})}
	ready := make(chan error)
	go k.run(prepare, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return k, nil
}

func (k *keeper) run(prepare func() error, ready chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with the keeper
	if unix.Gettid() == os.Getpid() {
		// Not the process's first thread: it can't end, and what /proc/self says is
		// said of it. While it is held here another goroutine gets another thread.
		inner := make(chan struct{})
		go func() {
			defer close(inner)
			k.run(prepare, ready)
		}()
		<-inner
		runtime.UnlockOSThread()
		return
	}
	defer close(k.end)
	k.tid = unix.Gettid()
	err := prepare()
	ready <- err
	if err != nil {
		return
	}
	for {
		select {
		case f := <-k.work:
			f()
		case <-k.quit:
			return
		}
	}
}

// start starts a command from the keeper's thread, bound to die with it.
func (k *keeper) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	err := errors.New("the cluster is closed")
	done := make(chan struct{})
	select {
	case k.work <- func() { defer close(done); err = cmd.Start() }:
		<-done
	case <-k.end:
	}
	return err
}

// close ends the thread, and with it the mount namespace once no process is in it.
func (k *keeper) close() {
	k.once.Do(func() { close(k.quit) })
	<-k.end
}
