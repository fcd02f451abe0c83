# Copyright the authors of layersweep
# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
# (sos itself is under the GPL, version 2.)
"""Plugin for sos 4.0 and later; docs/post-mortem.md says how to use it."""

from sos.report.plugins import Plugin, IndependentPlugin, DebianPlugin

try:
    from sos.report.plugins import PluginOpt
except ImportError:
    # Before sos 4.2 an option is a tuple.
    def PluginOpt(name, default, desc):
        return (name, desc, 'slow', default)


# Debian's sos 4.0 runs no plugin that is only an IndependentPlugin.
class Layersweep(Plugin, IndependentPlugin, DebianPlugin):
    """Collects what layersweep knows of the container image storage of a
    node: the diagnosis, the users of the disk, the images that garbage
    collection would delete, and those it has deleted. Every command only
    reads. No content of an image, container or volume is collected.
    """

    short_desc = 'Container image storage, measured by layersweep'
    plugin_name = 'layersweep'
    profiles = ('container', 'storage')
    packages = ('layersweep',)
    commands = ('layersweep',)
    # The first measurement of a large store reads all of its inodes.
    plugin_timeout = 900

    option_list = [
        PluginOpt('records', default=False,
                  desc='copy record files of containers/storage and the '
                       'database of layersweep'),
    ]

    def setup(self):
        # Quick ones first: the plugin's timeout ends what comes last, and
        # on a disk that does not answer each measurement takes its whole
        # time.
        self.add_document('--version', 'version.txt')
        self.add_document('config show', 'config.txt')
        self.add_document('history --all --limit 1000 --format json',
                          'history.json')
        # Nothing else that an administrator may keep beside them.
        self.add_copy_spec([
            '/etc/layersweep/layersweep.toml',
            '/etc/layersweep/layersweep.toml.d/*.toml',
            '/etc/layersweep/hold',
            '/usr/lib/layersweep/layersweep.toml',
            '/etc/cron.d/layersweep-cron',
            '/run/layersweep/hold',
            '/var/log/layersweep.log*',
        ])
        self.add_cmd_output([
            'systemctl list-timers --all layersweep-*',
            'systemctl cat layersweep-*',
        ])
        self.add_journal(units='layersweep-*', since='-7days')

        if self.get_option('records'):
            self.add_copy_spec([
                '/var/lib/containers/storage/overlay-*/*.json',
                '/var/lib/layersweep/layersweep.db*',
                '/etc/containers/storage.conf',
            ], sizelimit=500, tailit=False)

        self.add_document('report --format json', 'report.json')
        self.add_document('doctor --format json', 'doctor.json')
        self.add_document('gc --dry-run --format json', 'gc.json')
        self.add_document('report --no-trunc', 'report.txt')
        self.add_document('usage --no-trunc', 'usage.txt')

    def add_document(self, arguments, filename):
        """Standard error has progress and warnings, which are in the
        documents too. A truncated document cannot be parsed, so the limit
        is high: 10,000 images are about 60 MB.
        """
        self.add_cmd_output('layersweep ' + arguments, stderr=False,
                            suggest_filename=filename, timeout=300,
                            sizelimit=200)

# vim: set et ts=4 sw=4 :
