package mail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// sendmails are the usual paths of an MTA's sendmail.
var sendmails = []string{"/usr/sbin/sendmail", "/usr/lib/sendmail"}

var errNoProgram = errors.New("no mail program found")

// Program returns the site's mail program (mail_program), or the first of Slurm's MailProg and sendmail that exists.
func Program(site, mailProg string) (string, error) {
	if site != "" {
		if _, err := exec.LookPath(site); err != nil {
			return "", err
		}
		return site, nil
	}
	for _, p := range append([]string{mailProg}, sendmails...) {
		_, err := exec.LookPath(p)
		if filepath.IsAbs(p) && err == nil {
			return p, nil
		}
	}
	others := strings.Join(sendmails, ", ")
	return "", fmt.Errorf("%w: neither Slurm's MailProg (%q) nor %s exists", errNoProgram, mailProg, others)
}

const sendTimeout = 30 * time.Second

// Send passes a mail to a mail program. A program named sendmail gets headers and text on its standard input; any other
// is called for each address as slurmctld calls MailProg, PROGRAM -s SUBJECT ADDRESS, with the text on its standard
// input. sent reports whether the program accepted the mail for some address.
func Send(ctx context.Context, program string, to []string, subject, body string) (sent bool, err error) {
	if filepath.Base(program) == "sendmail" {
		err = run(ctx, message(to, subject, body), program, append([]string{"-i", "--"}, to...)...)
		return err == nil, err
	}
	var errs []error
	for _, address := range to {
		err := run(ctx, body, program, "-s", subject, address)
		sent = sent || err == nil
		errs = append(errs, err)
	}
	return sent, errors.Join(errs...)
}

func run(ctx context.Context, input, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(input)
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// A mail program that succeeds may leave a process behind that keeps its output open, or it is a busy machine.
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%s: %w: %.200s", program, err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return nil
}
