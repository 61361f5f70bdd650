package packaging_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// step calls the plugin as slurmstepd does, with what a real one can't be made to show: descriptors with numbers above
// the limit, and with an argument none of the first three. It prints what the plugin sets.
const step = `#include "SOURCE"
#include <stdarg.h>
#include <sys/resource.h>
static int out;
static char *variables[] = {"PATH=/usr/bin:/bin", NULL};
spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
	va_list to;
	va_start(to, item);
	switch (item) {
	case S_JOB_UID: *va_arg(to, uid_t *) = 1; break;
	case S_JOB_GID: *va_arg(to, gid_t *) = 1; break;
	case S_JOB_SUPPLEMENTARY_GIDS: *va_arg(to, gid_t **) = NULL; *va_arg(to, int *) = 0; break;
	case S_JOB_ID: *va_arg(to, uint32_t *) = 7; break;
	case S_JOB_ENV: *va_arg(to, char ***) = variables; break;
	default: return ESPANK_BAD_ARG;
	}
	va_end(to);
	return ESPANK_SUCCESS;
}
spank_err_t spank_setenv(spank_t sp, const char *var, const char *val, int overwrite)
{
	return dprintf(out, "%s=%s\n", var, val) > 0 ? ESPANK_SUCCESS : ESPANK_ERROR;
}
spank_err_t spank_unsetenv(spank_t sp, const char *var)
{
	return dprintf(out, "no %s\n", var) > 0 ? ESPANK_SUCCESS : ESPANK_ERROR;
}
int main(int ac, char **av)
{
	struct rlimit most = {4096, 4096};
	setrlimit(RLIMIT_NOFILE, &most);
	out = fcntl(1, F_DUPFD_CLOEXEC, 3000);
	if (out < 0 || fcntl(open("/etc/passwd", O_RDONLY), F_DUPFD, 2000) != 2000)
		return 1;
	most.rlim_cur = 256;
	setrlimit(RLIMIT_NOFILE, &most);
	for (int fd = 0; ac > 2 && fd < 3; fd++)
		close(fd);
	return slurm_spank_task_init_privileged(NULL, 1, av + 1) || slurm_spank_task_init(NULL, 0, NULL);
}
`

// Whatever the program prints and whichever descriptors the step has, the plugin sets whole variables alone, and the
// program has no descriptor of the step's.
func TestTaskPlugin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the plugin becomes another user")
	}
	if _, err := os.Stat("/usr/include/slurm/spank.h"); err != nil {
		slurmtest.Need(t, fmt.Errorf("SPANK plugins need slurm/spank.h (apt-get install libslurm-dev): %w", err))
	}
	dir := t.TempDir()
	must.OK(t, os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)) // the program runs as another user
	source := must.Get(filepath.Abs("../spank/slurmbridge.c"))(t)
	program := filepath.Join(dir, "step.c")
	must.OK(t, os.WriteFile(program, []byte(strings.Replace(step, "SOURCE", source, 1)), 0o644))
	said, err := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-o", dir+"/step", program).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for name, c := range map[string]struct{ script, want string }{
		"variables":        {"echo export A=1=2; echo unset B; echo print C; echo D=1", "A=1=2\nno B\n"},
		"the job's number": {"echo export JOB=$SLURM_JOB_ID", "JOB=7\n"},
		"no end of line":   {"printf 'export A=1'", "A=1\n"},
		"too much":         {"echo export A=1; printf 'export B=%020000d\\n' 1; echo export C=1", "A=1\n"},
		"errors":           {"echo export A=1 >&2", ""},
		"descriptors":      {"for f in /proc/$$/fd/20*; do [ ! -e $f ] || echo export OPEN=$f; done", ""},
		"no such program":  {"", ""},
	} {
		hook := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if c.script != "" {
			must.OK(t, os.WriteFile(hook, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755))
		}
		for _, more := range [][]string{nil, {"closed"}} {
			set, err := exec.Command(dir+"/step", append([]string{hook}, more...)...).Output()
			must.OK(t, err)
			must.Equal(t, string(set), c.want, "%s %v", name, more)
		}
	}
}
