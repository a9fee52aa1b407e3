import django

SECRET_KEY = "tests"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "tests.app",
    # Last on purpose: an app's models may import its jobs before ours is ready.
    "django_jobq",
]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
ROOT_URLCONF = "tests.app.urls"
JOBQ = {"default": {"BACKEND": "django_jobq.backends.memory.MemoryBackend"}}
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
