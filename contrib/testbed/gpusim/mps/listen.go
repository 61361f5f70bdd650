package mps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// errRunning is what a second daemon of the same pipe directory says.
var errRunning = errors.New("An instance of this daemon is already running") //nolint:revive,staticcheck // the real daemon's words

// lockDir makes sure one daemon at most uses the directory.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = f.Close()
			return nil, errRunning
		}
		// A daemon that just ended may have removed the file we have locked.
		mine, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			return f, nil
		}
		_ = f.Close()
	}
}

func (d *daemon) listenAndServe(ctx context.Context, ready func()) error {
	for _, n := range []string{controlSock, privSock} {
		// Left behind by a killed daemon; the lock says it is dead.
		if err := os.Remove(filepath.Join(d.dir, n)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	clients, err := listen(d.dir, controlSock)
	if err != nil {
		return err
	}
	defer func() { _ = clients.Close() }()
	ui, err := listen(d.dir, privSock)
	if err != nil {
		return err
	}
	defer func() { _ = ui.Close() }()
	defer d.cleanUp()
	// Every user's programs may request a server; the kernel identifies the client.
	if err := os.Chmod(filepath.Join(d.dir, controlSock), 0o666); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Join(d.dir, privSock), 0o600); err != nil {
		return err
	}
	pid := fmt.Appendf(nil, "%d\n", os.Getpid())
	if err := os.WriteFile(filepath.Join(d.dir, pidFile), pid, 0o644); err != nil {
		return err
	}
	stop := make(chan struct{})
	defer close(stop)
	go accept(clients, func(c *net.UnixConn) { d.greet(c, stop) })
	go accept(ui, func(c *net.UnixConn) { d.converse(c, stop) })
	ready()
	d.serve(ctx, clients)
	return nil
}

func (d *daemon) cleanUp() {
	for _, n := range []string{controlSock, privSock, pidFile, lockFile} {
		_ = os.Remove(filepath.Join(d.dir, n))
	}
}

func accept(l *net.UnixListener, f func(*net.UnixConn)) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: let some close
			continue
		}
		go f(c)
	}
}

// greet reads a new client's hello. One that says nothing in time is dropped.
func (d *daemon) greet(c *net.UnixConn, stop <-chan struct{}) {
	cred, err := peer(c)
	if err == nil {
		_ = c.SetReadDeadline(time.Now().Add(startSeconds * time.Second))
		var m message
		m, err = receive(bufio.NewReaderSize(c, 4096))
		_ = c.SetReadDeadline(time.Time{})
		if err == nil && m.Op != opHello {
			err = errors.New("no hello")
		}
	}
	if err != nil {
		_ = c.Close()
		return
	}
	select {
	case d.events <- newClient{&waiting{conn: c, pid: int(cred.Pid), uid: int(cred.Uid)}}:
	case <-stop:
		_ = c.Close()
	}
}

// converse answers a control program's commands, one after the other.
func (d *daemon) converse(c *net.UnixConn, stop <-chan struct{}) {
	defer func() { _ = c.Close() }()
	cred, err := peer(c)
	if err != nil || cred.Uid != 0 && int(cred.Uid) != d.uid {
		return
	}
	r := bufio.NewReaderSize(c, maxLine)
	for {
		m, err := receive(r)
		if err != nil {
			return
		}
		reply := make(chan string, 1)
		select {
		case d.events <- uiCommand{m.Line, reply}:
		case <-stop:
			return
		}
		select {
		case out := <-reply:
			if send(c, message{Op: opUI, Out: out}) != nil {
				return
			}
		case <-stop:
			return
		}
	}
}

// hungUp reports whether the client has gone while it waited.
func hungUp(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0
	})
	return err != nil || gone
}
