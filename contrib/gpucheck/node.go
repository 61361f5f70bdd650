package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec" //nolint:depguard // nvidia-smi is run
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// call has one of the product's hooks do its work, as slurmbridge-hook does. It returns the time taken and the error.
func (s *stage) call(job map[string]string, do func(*prolog.Hook, context.Context, func(string) string) error) string {
	h := &prolog.Hook{Dir: prolog.Dir(s.folder), Now: time.Now}
	for _, d := range s.card.lib.Devices() {
		h.Cards = append(h.Cards, prolog.Card{
			Index: d.Index, UUID: d.UUID, Lost: d.Lost != "", Exclusive: d.Mode == nvml.Exclusive, Clients: d.MPS.MaxClients,
		})
	}
	h.MPS = &prolog.MPS{Dir: h.Dir, Control: s.control, Cards: h.Cards, Env: environ(), Answer: s.deadline * 3 / 10}
	ctx, cancel := context.WithTimeout(context.Background(), s.deadline)
	defer cancel()
	from := time.Now()
	err := do(h, ctx, func(name string) string { return job[name] })
	return fmt.Sprintf("%.3f s %s", time.Since(from).Seconds(), errText(err))
}

// jobsOfANode: four jobs that start together go the product's way: prolog, task prolog, a process that goes by what it
// prints, epilog.
func jobsOfANode(ctx context.Context, s *stage) error {
	defer syscall.Umask(syscall.Umask(0o022)) // as slurmbridge-hook
	s.env = append(environ(), s.folders()...)
	uid := cmp.Or(os.Getuid(), other) // root's jobs are another user's
	var jobs [4]map[string]string
	var prologs [len(jobs)]string
	var together sync.WaitGroup
	for i := range jobs {
		gpu := strconv.Itoa(s.card.Index)
		jobs[i] = map[string]string{
			"SLURM_JOB_ID": strconv.Itoa(10*os.Getpid() + i), "SLURM_JOB_UID": strconv.Itoa(uid), "SLURM_JOB_GPUS": gpu,
			"CUDA_VISIBLE_DEVICES": gpu, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
		}
		together.Go(func() { prologs[i] = s.call(jobs[i], (*prolog.Hook).Prolog) })
	}
	together.Wait()
	for i, j := range jobs {
		var printed bytes.Buffer
		said := s.call(j, func(h *prolog.Hook, _ context.Context, get func(string) string) error {
			return h.TaskProlog(&printed, get)
		})
		s.note("job %d: prolog %s, task prolog %s: %q", i, prologs[i], said, printed.String())
		vars := strings.Split(strings.ReplaceAll(strings.TrimSpace(printed.String()), "export ", ""), "\n")
		for name, value := range j {
			vars = append([]string{name + "=" + value}, vars...)
		}
		s.connect(ctx, fmt.Sprint("of job ", i), clientOptions{uid: uid, vars: vars})
	}
	s.facts["clients of the server"] = strings.Fields(s.command(ctx, "get_client_list %d", s.server(ctx)))
	for i, j := range jobs {
		s.dismiss(s.clients[i])
		said := s.call(j, (*prolog.Hook).Epilog)
		s.note("job %d: epilog %s; MPS programs %v", i, said, s.programs("nvidia-cuda-mps"))
	}
	s.facts["MPS programs after the last epilog"] = len(s.programs("nvidia-cuda-mps"))
	left := []string{}
	for _, kind := range []string{"jobs/*", "tasks/*", "mps/*/pipe", "mps/*/user", "mps/*/*.json"} {
		found, _ := filepath.Glob(filepath.Join(s.folder, kind))
		left = append(left, found...)
	}
	s.facts["left after the last epilog"] = left
	return nil
}

// exclusive: whether a process without MPS computes beside MPS's clients in the mode EXCLUSIVE_PROCESS.
func exclusive(ctx context.Context, s *stage) error {
	if err := s.setMode(ctx, "EXCLUSIVE_PROCESS"); err != nil {
		return fmt.Errorf("set the compute mode: %w", err)
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	a, b, err := s.pair(ctx, 1, 1)
	if err != nil {
		return err
	}
	c := s.connect(ctx, "without MPS", clientOptions{vars: []string{
		"CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(s.folder, "none"), "CUDA_VISIBLE_DEVICES=" + s.card.UUID,
	}})
	s.facts["a process without MPS computes"] = c.computes()
	s.after(ctx, map[string]*client{"client a": a, "client b": b})
	return nil
}

// setMode puts the card into a compute mode until the situation has ended. A program of its own puts it back when its
// input ends, as it does at this process's end, too, however that comes.
func (s *stage) setMode(ctx context.Context, mode string) error {
	smi, err := exec.LookPath("nvidia-smi")
	if err != nil || os.Getuid() != 0 || s.card.Mode == "" {
		return errors.New("it takes root, nvidia-smi, and a mode that NVML tells, to be put back")
	}
	back := exec.Command("sh", "-c", `cat; exec "$0" -i "$1" -c "$2"`, smi, s.card.UUID, strings.ToUpper(s.card.Mode))
	back.Env, back.Dir, back.SysProcAttr = environ(), "/", &syscall.SysProcAttr{Setsid: true}
	in, err := back.StdinPipe()
	if err = errors.Join(err, back.Start()); err != nil {
		return err
	}
	s.putBack = func() error { return errors.Join(in.Close(), back.Wait()) }
	said, err := output(ctx, "", environ(), smi, "-i", s.card.UUID, "-c", mode)
	s.note("nvidia-smi -c %s: %.200q", mode, said)
	return err
}
