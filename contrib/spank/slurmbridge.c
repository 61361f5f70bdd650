/*
 * The task prolog as a SPANK plugin, for clusters whose jobs run in containers that a SPANK plugin enters, as Pyxis
 * does.
 *
 * There TaskProlog= of slurm.conf won't do: Slurm runs it after the plugins, inside the container, and ends a task
 * whose task prolog can't be executed, one without a GPU, too (exec_task of task.c, 22.05 to 26.05). This plugin runs the
 * same program before any container is entered, and sets what it prints as TaskProlog= would. Whatever goes wrong it
 * leaves the task alone: the task then computes without MPS.
 *
 * Like each SPANK plugin it is built for one release of Slurm's, against that release's slurm/spank.h:
 *
 *   gcc -O2 -Wall -shared -fPIC -o /usr/lib/slurmbridge/spank.so slurmbridge.c
 *
 * plugstack.conf, above the line of Pyxis, which in some versions enters the container where this plugin runs the
 * program. Slurm goes on without an optional plugin that is missing, or is another release's:
 *
 *   optional /usr/lib/slurmbridge/spank.so
 *
 * An argument there names another program than /usr/lib/slurmbridge/taskprolog.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(slurmbridge, 1)

/* The program ends by itself sooner, within its own deadline. */
#define PATIENCE_S 30

/* What the program has printed for this task, a process of its own. */
static char printed[16384];

static time_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

/* Closes all descriptors but the first three: some of the step's may have numbers above a limit that was lowered. */
static void close_others(void)
{
	struct dirent *entry;
	DIR *open_ones;

#ifdef SYS_close_range
	if (syscall(SYS_close_range, 3U, ~0U, 0U) == 0)
		return;
#endif
	/* Linux before 5.9 */
	open_ones = opendir("/proc/self/fd");
	if (!open_ones)
		return;
	while ((entry = readdir(open_ones))) {
		int fd = atoi(entry->d_name);

		if (fd > 2 && fd != dirfd(open_ones))
			close(fd);
	}
	closedir(open_ones);
}

/* Becomes the program, as the job's user; returns where that fails. */
static void become(const char *program, uid_t uid, gid_t gid, const gid_t *gids, int ngids, char **env, const char *job,
		   int out)
{
	int none = open("/dev/null", O_RDWR);

	/* Either may be one of the first three, where the step has closed these. */
	none = fcntl(none, F_DUPFD, 3);
	out = fcntl(out, F_DUPFD, 3);
	if (none < 0 || out < 0 || dup2(none, 0) < 0 || dup2(out, 1) < 0 || dup2(none, 2) < 0)
		return;
	close_others();
	setsid();
	if (setgroups(ngids, gids) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
		return;
	environ = env;
	if (setenv("SLURM_JOB_ID", job, 1))
		return;
	execl(program, program, (char *) NULL);
}

/*
 * Reads what the program prints until it closes its output. Where the time is over before that, or there is no more
 * room, a line that has no end counts for nothing.
 */
static void collect(int in)
{
	time_t end = now() + PATIENCE_S;
	size_t n = 0;

	while (n < sizeof(printed) - 1) {
		struct pollfd p = {.fd = in, .events = POLLIN};
		time_t left = end - now();
		ssize_t got;

		if (left <= 0)
			break;
		if (poll(&p, 1, (int) left * 1000) < 0) {
			if (errno == EINTR)
				continue;
			break;
		}
		if (!p.revents)
			break;
		got = read(in, printed + n, sizeof(printed) - 1 - n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got == 0)
			return; /* the rest of printed is zero */
		if (got < 0)
			break;
		n += (size_t) got;
	}
	while (n > 0 && printed[n - 1] != '\n')
		n--;
	printed[n] = '\0';
}

/* Ends the program, if it hasn't ended yet. One that waits for a dead disk can't end, and is left behind. */
static void finish(pid_t pid)
{
	time_t end = now() + 2;

	kill(-pid, SIGKILL);
	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, WNOHANG) == 0 && now() < end)
		usleep(1000);
}

/* Called as root, in the task's process, before a plugin enters a container and before Slurm becomes the job's user. */
int slurm_spank_task_init_privileged(spank_t sp, int ac, char **av)
{
	const char *program = ac > 0 ? av[0] : "/usr/lib/slurmbridge/taskprolog";
	uid_t uid;
	gid_t gid, *gids = NULL;
	int ngids = 0, out[2];
	uint32_t id;
	char **env, job[16];
	pid_t pid;

	if (access(program, X_OK) != 0)
		return 0;
	if (spank_get_item(sp, S_JOB_UID, &uid) || spank_get_item(sp, S_JOB_GID, &gid) ||
	    spank_get_item(sp, S_JOB_SUPPLEMENTARY_GIDS, &gids, &ngids) || spank_get_item(sp, S_JOB_ID, &id) ||
	    spank_get_item(sp, S_JOB_ENV, &env) || pipe2(out, O_CLOEXEC))
		return 0;
	snprintf(job, sizeof(job), "%u", id);
	pid = fork();
	if (pid == 0) {
		become(program, uid, gid, gids, ngids, env, job, out[1]);
		_exit(127);
	}
	close(out[1]);
	if (pid > 0) {
		collect(out[0]);
		finish(pid);
	}
	close(out[0]);
	return 0;
}

/* Called once Slurm has set all of the task's variables. It opens no file: the container may have been entered. */
int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	char *rest = NULL;

	for (char *line = strtok_r(printed, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *value;

		if (!strncmp(line, "unset ", 6)) {
			spank_unsetenv(sp, line + 6);
		} else if (!strncmp(line, "export ", 7) && (value = strchr(line, '='))) {
			*value = '\0';
			spank_setenv(sp, line + 7, value + 1, 1);
		}
	}
	return 0;
}
