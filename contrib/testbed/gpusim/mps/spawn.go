package mps

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// startServer starts a server process as the given user.
func (d *daemon) startServer(uid int) error {
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer func() { _ = theirs.Close() }()
	log, err := serverLog(d.logDir)
	if err != nil {
		_ = ours.Close()
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{serverName}, ExtraFiles: []*os.File{theirs, log}, Dir: "/"}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if uid != d.uid {
		if cmd.SysProcAttr.Credential, err = credential(uid); err != nil {
			_ = ours.Close()
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		_ = ours.Close()
		return err
	}
	pid := cmd.Process.Pid
	d.servers[pid] = &serverProc{pid: pid, uid: uid, conn: ours, status: statusInit}
	d.log.printf("Starting new server %d for user %d", pid, uid)
	go d.listenTo(pid, ours, cmd)
	return nil
}

// serverLog opens the servers' log, which they all append to.
func serverLog(dir string) (*os.File, error) {
	if f := openLog(dir, "server.log"); f != nil {
		return f, nil
	}
	return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
}

// listenTo passes on what a server says and, at last, how it ended.
func (d *daemon) listenTo(pid int, c *net.UnixConn, cmd *exec.Cmd) {
	r := bufio.NewReaderSize(c, 4096)
	for {
		m, err := receive(r)
		if err != nil {
			break
		}
		d.events <- fromServer{pid, m}
	}
	_ = cmd.Wait()
	d.events <- serverEnd{pid, cmd.ProcessState.ExitCode()}
}

// credential is a user's identity with its groups. A uid without an account
// keeps its number as its group.
func credential(uid int) (*syscall.Credential, error) {
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), NoSetGroups: false}
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return c, nil
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	c.Gid = uint32(gid)
	return c, nil
}

// socketPair returns the daemon's end and the server's. It keeps messages apart:
// a connection handed over belongs to one.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs := os.NewFile(uintptr(fds[1]), "server")
	f := os.NewFile(uintptr(fds[0]), "daemon")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}

// handOver passes a client's connection on to a server.
func handOver(server *net.UnixConn, w *waiting) error {
	m := message{Op: opClient, PID: w.pid}
	b, err := m.encode()
	if err != nil {
		return err
	}
	raw, err := w.conn.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		_, _, serr = server.WriteMsgUnix(b, unix.UnixRights(int(fd)), nil)
	})
	return errors.Join(err, serr)
}
