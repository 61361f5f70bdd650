package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec" //nolint:depguard // the minder is this program
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurmbridge/slurmbridge/prolog"
)

// service is the GPU's MPS, by the hooks' handling, in a folder of its own.
type service struct {
	folder string
	mps    *prolog.MPS
	gpu    int
	uuid   string
	minder *exec.Cmd
	life   io.Closer // closed when this program ends, however it does
}

// within is how long MPS may take to start or end.
const within = 20 * time.Second

func newService(folder, control string, gpu int, uuid string) *service {
	s := &service{folder: folder, gpu: gpu, uuid: uuid}
	s.mps = &prolog.MPS{Dir: prolog.Dir(folder), Control: control, Cards: []prolog.Card{{Index: gpu, UUID: uuid}}, Quit: 2 * time.Second}
	for _, name := range []string{"LD_LIBRARY_PATH", "GPUSIM_STATE"} { // the MPS programs need them, too
		if v := os.Getenv(name); v != "" {
			s.mps.Env = append(s.mps.Env, name+"="+v)
		}
	}
	return s
}

// start starts the minder and the MPS daemon. self is this program.
func (s *service) start(ctx context.Context, self string) error {
	s.minder = exec.Command(self, "mind", s.folder, s.mps.Control, strconv.Itoa(s.gpu), s.uuid)
	s.minder.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	s.minder.Dir = "/"
	life, err := s.minder.StdinPipe()
	if err != nil {
		return err
	}
	if err := s.minder.Start(); err != nil {
		return fmt.Errorf("start the minder: %w", err)
	}
	s.life = life
	return s.ensure(ctx)
}

// ensure has a daemon that answers, and a server for this user.
func (s *service) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return s.mps.Ensure(ctx, s.gpu, uint32(os.Getuid()), false) //nolint:gosec // a uid
}

// renew replaces daemon and server: one that a client has failed on may fail the
// next ones.
func (s *service) renew(ctx context.Context) error {
	err := s.release() // which kills what doesn't end by itself, and says so
	if eerr := s.ensure(ctx); eerr != nil {
		return errors.Join(eerr, err)
	}
	return nil
}

func (s *service) release() error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return s.mps.Release(ctx, s.gpu)
}

// clients counts the processes that the GPU's MPS servers serve.
func (s *service) clients(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ask := func(what string) ([]string, error) {
		list, err := output(ctx, what+"\n", append(environ(s.environ()...), s.mps.Env...), s.mps.Control)
		if err != nil {
			return nil, fmt.Errorf("MPS, %s: %w", what, err)
		}
		return strings.Fields(list), nil
	}
	servers, err := ask("get_server_list")
	n := 0
	for _, pid := range servers {
		clients, cerr := ask("get_client_list " + pid)
		n, err = n+len(clients), errors.Join(err, cerr)
	}
	return n, err
}

// environ is what makes a program a client: the daemon knows one GPU only.
func (s *service) environ() []string {
	return []string{"CUDA_MPS_PIPE_DIRECTORY=" + s.mps.Pipe(s.gpu), "CUDA_VISIBLE_DEVICES=0"}
}

// close ends MPS and the minder, which then only removes the folder.
func (s *service) close() error {
	err := s.release()
	if s.life != nil {
		_ = s.life.Close()
		err = errors.Join(err, s.minder.Wait())
	}
	return err
}

// mind waits until the program that started it has ended, however that came
// about, ends its MPS and removes its folder.
func mind(life io.Reader, folder, control, gpu, uuid string) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	n, err := strconv.Atoi(gpu)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, life)
	return errors.Join(newService(folder, control, n, uuid).release(), os.RemoveAll(folder))
}
