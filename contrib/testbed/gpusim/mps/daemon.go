package mps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
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
	status   string     // as get_server_status prints it
	clients  []int      // pids, in order of arrival
	joining  []*waiting // handed over, not yet taken; theirs again if the server dies first
	draining bool       // to end after its last client
	exiting  bool       // was ordered to end
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
		pid    int
		status int // -1: a signal
	}
)

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
		d.ended(e.pid, e.status)
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

// dispatch serves the waiting clients that can be served now, in order of arrival.
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
	// A server that is to end ends when it is empty.
	for _, s := range d.servers {
		if (s.draining || d.quitting) && len(s.clients) == 0 && s.status != statusInit {
			d.sendExit(s)
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
			d.sendExit(s)
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
	switch err := handOver(s.conn, w); {
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return false // the server has just died; its end is on the way
	case err != nil:
		d.log.printf("Client %d: %v", w.pid, err)
		refuse(w)
		return true
	}
	d.log.printf("NEW CLIENT %d from user %d: Server already exists", w.pid, w.uid)
	s.joining = append(s.joining, w)
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
	case opJoined:
		if i := slices.IndexFunc(s.joining, func(w *waiting) bool { return w.pid == m.PID }); i >= 0 {
			_ = s.joining[i].conn.Close() // the server has it now
			s.joining = slices.Delete(s.joining, i, i+1)
		}
	case opGone:
		if i := slices.Index(s.clients, m.PID); i >= 0 {
			s.clients = slices.Delete(s.clients, i, i+1)
		}
	case opFault:
		s.status = statusFault
		if !d.volta {
			d.log.printf("Server encountered a fatal exception. Shutting down") // the real daemon's words
		}
		d.log.printf("Server %d: fault of client %d", pid, m.PID)
	case opRecovered:
		s.status = statusActive
	}
}

func (d *daemon) ended(pid, status int) {
	s := d.servers[pid]
	if s == nil {
		return
	}
	d.log.printf("Server %d exited with status %d", pid, status)
	_ = s.conn.Close()
	delete(d.servers, pid)
	for _, w := range s.joining {
		w.asked = false
	}
	d.pending = append(s.joining, d.pending...)
}

func (d *daemon) sendExit(s *serverProc) {
	if !s.exiting {
		s.exiting = true
		_ = send(s.conn, message{Op: opExit})
	}
}

// force ends the servers with the clients they still have.
func (d *daemon) force() {
	for _, s := range d.servers {
		s.exiting = false
		d.sendExit(s)
	}
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
func (d *daemon) pids() []int { return slices.Sorted(maps.Keys(d.servers)) }
