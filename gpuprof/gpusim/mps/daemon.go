package mps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/gpuprof/gpusim"
)

// daemon is the control daemon. Its loop owns everything; what listens and
// reads only sends it events.
type daemon struct {
	dir       string
	logDir    string
	log       *logger
	multiuser bool
	uid       int
	// maxClients of a server: the least any of its GPUs allows.
	maxClients int
	volta      bool

	events  chan any
	servers map[int]*serverProc // by pid
	pending []*waiting
	// quitting: no new clients; ends when the servers have ended.
	quitting bool
	deadline <-chan time.Time // when to force the servers to end
	quitters []chan string
	percent  string // default_active_thread_percentage
}

// serverProc is a server process as the daemon sees it.
type serverProc struct {
	pid      int
	uid      int
	conn     *net.UnixConn
	status   string // as get_server_status prints it
	clients  []int  // pids, in order of arrival
	draining bool   // to end as soon as no client is left
	told     bool   // has been told to end
}

const (
	statusInit   = "INITIALIZING"
	statusActive = "ACTIVE"
	statusFault  = "FAULT"
)

// waiting is a client that has no server yet, or a start_server (conn nil).
type waiting struct {
	conn *net.UnixConn
	pid  int
	uid  int
	done chan string // start_server: answered when the server is ready
	// asked: the server was started for it.
	asked bool
}

type (
	newClient struct{ w *waiting }
	uiCommand struct {
		line  string
		reply chan string
	}
	fromServer struct {
		pid int
		msg message
	}
	serverEnd struct {
		pid   int
		state string
	}
)

// errRunning is what a second daemon of the same pipe directory says.
var errRunning = errors.New("An instance of this daemon is already running") //nolint:revive,staticcheck // the real daemon's words

// runDaemon is the control daemon's process. ready is called when it answers.
func runDaemon(ctx context.Context, getenv func(string) string, multiuser bool, ready func()) error {
	d := &daemon{
		dir: pipeDir(getenv), multiuser: multiuser, uid: os.Getuid(),
		events: make(chan any), servers: map[int]*serverProc{}, percent: "100.0",
	}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return fmt.Errorf("create pipe directory: %w", err)
	}
	lock, err := lockDir(d.dir)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := d.card(getenv); err != nil {
		return err
	}
	d.log = newLog(openLog(logDir(getenv), "control.log"), "Control")
	defer d.log.close()
	d.logDir = logDir(getenv)
	d.log.printf("Starting control daemon using socket %s", filepath.Join(d.dir, controlSock))
	d.log.printf("To connect CUDA applications to this daemon, set env %s=%s", PipeEnv, d.dir)
	return d.listenAndServe(ctx, ready)
}

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

// card reads the rules of the GPUs the servers will have.
func (d *daemon) card(getenv func(string) string) error {
	st, err := gpusim.Open(getenv(gpusim.StateEnv))
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }()
	v, set := os.LookupEnv(VisibleEnv)
	vis := gpusim.Visible(v, set, st.UUIDs())
	if len(vis) == 0 {
		return errors.New("no CUDA-capable device is detected")
	}
	d.volta = true
	for n, i := range vis {
		g := st.Device(i)
		if n == 0 || g.MaxClients() < d.maxClients {
			d.maxClients = g.MaxClients()
		}
		d.volta = d.volta && !g.SameUser()
	}
	if d.multiuser && (!d.volta || d.uid != 0) {
		return errors.New("-multiuser-server needs root and a GPU of Volta or later")
	}
	return nil
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
	// Every user's programs may ask for a server; the kernel tells who asks.
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

// serve is the daemon's loop. It returns when quitting is done.
func (d *daemon) serve(ctx context.Context, clients *net.UnixListener) {
	done := ctx.Done()
	for {
		select {
		case e := <-d.events:
			d.handle(e)
		case <-d.deadline:
			d.log.printf("Timed out waiting for clients, forcing servers to end")
			d.force()
		case <-done:
			done = nil // once
			d.quit(0, nil)
			d.force()
		}
		if d.quitting {
			_ = clients.Close()
			if len(d.servers) == 0 {
				d.log.printf("Exit")
				for _, q := range d.quitters {
					q <- ""
				}
				return
			}
		}
		d.dispatch()
	}
}

func (d *daemon) handle(e any) {
	switch e := e.(type) {
	case newClient:
		d.log.printf("Accepting connection...")
		if d.uid != 0 && e.w.uid != d.uid {
			d.log.printf("User %d is not served by the daemon of user %d", e.w.uid, d.uid)
			refuse(e.w)
			return
		}
		d.pending = append(d.pending, e.w)
		if s := d.active(); s == nil || s.status != statusActive {
			d.log.printf("NEW CLIENT %d from user %d: Server is not ready, push client to pending list", e.w.pid, e.w.uid)
		}
	case uiCommand:
		d.log.printf("NEW UI")
		d.log.printf("Cmd:%s", e.line)
		d.command(e.line, e.reply)
	case fromServer:
		d.hear(e.pid, e.msg)
	case serverEnd:
		d.ended(e.pid, e.state)
	}
}

// active returns the server that is there; with one user at a time there is one
// at most.
func (d *daemon) active() *serverProc {
	for _, s := range d.servers {
		return s
	}
	return nil
}

// dispatch serves those who wait, in order of arrival, as far as that is possible
// now.
func (d *daemon) dispatch() {
	for len(d.pending) > 0 {
		w := d.pending[0]
		switch {
		case d.quitting:
			refuse(w)
		case w.conn != nil && hungUp(w.conn):
			_ = w.conn.Close()
		default:
			if !d.place(w) {
				return
			}
		}
		d.pending = d.pending[1:]
	}
	// What was asked to end, ends when it is empty.
	for _, s := range d.servers {
		if (s.draining || d.quitting) && len(s.clients) == 0 && s.status != statusInit {
			d.tellExit(s)
		}
	}
}

// place gives w its server; false: it has to wait.
func (d *daemon) place(w *waiting) bool {
	uid := w.uid
	if d.multiuser {
		uid = 0
	}
	s := d.active()
	if s == nil {
		if w.asked {
			// The server that was started for it has failed.
			refuse(w)
			return true
		}
		w.asked = true
		if err := d.startServer(uid); err != nil {
			d.log.printf("Failed to start server for user %d: %v", uid, err)
			refuse(w)
			return true
		}
		return false
	}
	if s.uid != uid || s.draining {
		s.draining = true
		w.asked = false
		if len(s.clients) == 0 && s.status != statusInit {
			d.tellExit(s)
		}
		return false
	}
	if s.status != statusActive {
		return false
	}
	if w.conn == nil {
		w.done <- ""
		return true
	}
	if len(s.clients) >= d.maxClients {
		d.log.printf("Client %d: server %d has all the clients it can serve (%d)", w.pid, s.pid, d.maxClients)
		refuse(w)
		return true
	}
	if err := handOver(s.conn, w); err != nil {
		d.log.printf("Client %d: %v", w.pid, err)
		refuse(w)
		return true
	}
	d.log.printf("NEW CLIENT %d from user %d: Server already exists", w.pid, w.uid)
	_ = w.conn.Close() // the server has it now
	s.clients = append(s.clients, w.pid)
	return true
}

// hear is what a server says.
func (d *daemon) hear(pid int, m message) {
	s := d.servers[pid]
	if s == nil {
		return
	}
	switch m.Op {
	case opReady:
		s.status = statusActive
		d.log.printf("NEW SERVER %d: Ready", pid)
	case opGone:
		for i, c := range s.clients {
			if c == m.PID {
				s.clients = append(s.clients[:i], s.clients[i+1:]...)
				break
			}
		}
	case opFault:
		s.status = statusFault
		d.log.printf("Server %d: fault of client %d", pid, m.PID)
	case opRecovered:
		s.status = statusActive
	}
}

func (d *daemon) ended(pid int, state string) {
	s := d.servers[pid]
	if s == nil {
		return
	}
	d.log.printf("Server %d exited with %s", pid, state)
	_ = s.conn.Close()
	delete(d.servers, pid)
}

func (d *daemon) tellExit(s *serverProc) {
	if !s.told {
		s.told = true
		_ = send(s.conn, message{Op: opExit})
	}
}

// force ends the servers with the clients they still have.
func (d *daemon) force() {
	for _, s := range d.servers {
		s.told = false
		d.tellExit(s)
	}
}

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
	d.events <- serverEnd{pid, cmd.ProcessState.String()}
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

func refuse(w *waiting) {
	if w.conn == nil {
		w.done <- "Failed to start MPS server\n"
		return
	}
	_ = send(w.conn, message{Op: opError, Code: CodeConnectionFailed})
	_ = w.conn.Close()
}

// pids returns the servers' pids in order.
func (d *daemon) pids() []int {
	out := make([]int, 0, len(d.servers))
	for pid := range d.servers {
		out = append(out, pid)
	}
	sort.Ints(out)
	return out
}
